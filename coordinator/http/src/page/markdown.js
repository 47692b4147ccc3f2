// Markdown as elements, for texts of models: headings, lists, tables, quotes, code, emphasis, links. Every text
// becomes a text node, so nothing that a model writes is ever read as HTML.

const el = (name, ...children) => {
  const node = document.createElement(name);
  node.append(...children);
  return node;
};

const INLINE = /(`+)([\s\S]+?)\1|\*\*([\s\S]+?)\*\*|__([\s\S]+?)__|\*([^*\s][^*]*?)\*|\[([^\]]+)\]\((https?:[^)\s]+)\)|(https?:\/\/[^\s<>)\]]+)/;

function inline(text) {
  const nodes = [];
  let rest = text;
  for (let found; (found = INLINE.exec(rest)); ) {
    const [all, , code, bold, bold2, italic, label, target, bare] = found;
    if (found.index > 0) nodes.push(rest.slice(0, found.index));
    if (code !== undefined) nodes.push(el('code', code));
    else if (bold ?? bold2) nodes.push(el('strong', ...inline(bold ?? bold2)));
    else if (italic) nodes.push(el('em', ...inline(italic)));
    else {
      const link = el('a', label ?? bare);
      link.href = target ?? bare;
      link.rel = 'noreferrer noopener';
      link.target = '_blank';
      nodes.push(link);
    }
    rest = rest.slice(found.index + all.length);
  }
  if (rest) nodes.push(rest);
  return nodes;
}

const lines = (text) => {
  const nodes = [];
  text.split('\n').forEach((line, i) => {
    if (i > 0) nodes.push(el('br'));
    nodes.push(...inline(line));
  });
  return nodes;
};

function code(language, text) {
  const copy = el('button', 'Copy');
  copy.type = 'button';
  copy.className = 'copy';
  copy.addEventListener('click', async () => {
    await navigator.clipboard.writeText(text);
    copy.textContent = 'Copied';
    setTimeout(() => (copy.textContent = 'Copy'), 1500);
  });
  const pre = el('pre', copy, el('code', text));
  if (language) pre.dataset.language = language;
  pre.tabIndex = 0;
  return pre;
}

const cells = (row) => row.trim().replace(/^\||\|$/g, '').split('|').map((cell) => cell.trim());

function table(head, body) {
  const row = (name) => (line) => el('tr', ...cells(line).map((cell) => el(name, ...inline(cell))));
  return el('table', el('thead', row('th')(head)), el('tbody', ...body.map(row('td'))));
}

const ITEM = /^(\s*)([-*+]|\d+[.)])\s+(.*)$/;

// Items of a list and what is indented below them, from line `i` on.
function list(all, i) {
  const indent = ITEM.exec(all[i])[1].length;
  const ordered = /\d/.test(ITEM.exec(all[i])[2]);
  const node = el(ordered ? 'ol' : 'ul');
  if (ordered) node.start = parseInt(ITEM.exec(all[i])[2], 10);
  while (i < all.length) {
    const item = ITEM.exec(all[i]);
    if (item && item[1].length < indent) break;
    if (item && item[1].length === indent) {
      node.append(el('li', ...inline(item[3])));
      i += 1;
    } else if (item) {
      const [inner, next] = list(all, i);
      node.lastChild.append(inner);
      i = next;
    } else if (/^\s+\S/.test(all[i])) {
      node.lastChild.append(el('br'), ...inline(all[i].trim()));
      i += 1;
    } else break;
  }
  return [node, i];
}

export function markdown(text) {
  const all = text.split('\n');
  const nodes = [];
  let open = [];
  const flush = () => {
    if (open.length) nodes.push(el('p', ...lines(open.join('\n'))));
    open = [];
  };
  for (let i = 0; i < all.length; ) {
    const line = all[i];
    const fence = /^\s*(```+|~~~+)\s*(\S*)/.exec(line);
    const heading = /^(#{1,6})\s+(.*)$/.exec(line);
    if (fence) {
      flush();
      const body = [];
      for (i += 1; i < all.length && !all[i].trim().startsWith(fence[1]); i += 1) body.push(all[i]);
      nodes.push(code(fence[2], body.join('\n')));
      i += 1;
    } else if (heading) {
      flush();
      nodes.push(el(`h${Math.min(heading[1].length + 1, 6)}`, ...inline(heading[2])));
      i += 1;
    } else if (ITEM.test(line)) {
      flush();
      const [node, next] = list(all, i);
      nodes.push(node);
      i = next;
    } else if (/^\s*>/.test(line)) {
      flush();
      const body = [];
      for (; i < all.length && /^\s*>/.test(all[i]); i += 1) body.push(all[i].replace(/^\s*>\s?/, ''));
      nodes.push(el('blockquote', ...markdown(body.join('\n'))));
    } else if (line.includes('|') && /^\s*\|?[\s:|-]+\|[\s:|-]*$/.test(all[i + 1] ?? '')) {
      flush();
      const body = [];
      const head = line;
      for (i += 2; i < all.length && all[i].includes('|'); i += 1) body.push(all[i]);
      nodes.push(table(head, body));
    } else if (/^\s*([-*_])(\s*\1){2,}\s*$/.test(line)) {
      flush();
      nodes.push(el('hr'));
      i += 1;
    } else {
      if (line.trim() === '') flush();
      else open.push(line);
      i += 1;
    }
  }
  flush();
  return nodes;
}
