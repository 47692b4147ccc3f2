// Markdown as elements, for texts of models: headings, lists, tables, quotes, code, emphasis, links. Every text
// becomes a text node, so nothing that a model writes is ever read as HTML. A text may be of any kind and length: what is
// nested deeper than MAX_DEPTH is shown as text, and no pattern looks further than it has to.

const MAX_DEPTH = 16;

// Children are nodes, texts, or lists of them, which may be longer than a call may have arguments.
const el = (name, ...children) => {
  const node = document.createElement(name);
  for (const child of children.flat()) node.append(child);
  return node;
};

const INLINE = /(`+)([\s\S]+?)\1|\*\*([\s\S]+?)\*\*|__([\s\S]+?)__|\*([^*\s][^*]*?)\*|\[([^[\]]{1,500})\]\((https?:[^)\s]{1,2000})\)|(https?:\/\/[^\s<>)\]]+)/;

function inline(text, depth) {
  if (depth >= MAX_DEPTH) return [text];
  const nodes = [];
  let rest = text;
  for (let found; (found = INLINE.exec(rest)); ) {
    const [all, , code, bold, bold2, italic, label, target, bare] = found;
    if (found.index > 0) nodes.push(rest.slice(0, found.index));
    if (code !== undefined) nodes.push(el('code', code));
    else if (bold ?? bold2) nodes.push(el('strong', inline(bold ?? bold2, depth + 1)));
    else if (italic) nodes.push(el('em', inline(italic, depth + 1)));
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

const lines = (texts, depth) => texts.flatMap((line, i) => [...(i > 0 ? [el('br')] : []), ...inline(line, depth)]);

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

function table(head, body, depth) {
  const row = (name) => (line) => el('tr', cells(line).map((cell) => el(name, inline(cell, depth))));
  return el('table', el('thead', row('th')(head)), el('tbody', body.map(row('td'))));
}

// The line below a table's head.
const isRule = (line) => /^[\s:|-]+$/.test(line) && line.includes('|') && line.includes('-');

const ITEM = /^(\s*)([-*+]|\d+[.)])\s+(.*)$/;

// Items of a list and what is indented below them, from line `i` on. Too deep ones are items of the deepest list.
function list(all, i, depth) {
  const indent = ITEM.exec(all[i])[1].length;
  const ordered = /\d/.test(ITEM.exec(all[i])[2]);
  const node = el(ordered ? 'ol' : 'ul');
  if (ordered) node.start = parseInt(ITEM.exec(all[i])[2], 10);
  while (i < all.length) {
    const item = ITEM.exec(all[i]);
    if (item && item[1].length < indent) break;
    if (item && (item[1].length === indent || depth >= MAX_DEPTH)) {
      node.append(el('li', inline(item[3], depth)));
      i += 1;
    } else if (item) {
      const [inner, next] = list(all, i, depth + 1);
      node.lastChild.append(inner);
      i = next;
    } else if (/^\s+\S/.test(all[i])) {
      for (const part of [el('br'), ...inline(all[i].trim(), depth)]) node.lastChild.append(part);
      i += 1;
    } else break;
  }
  return [node, i];
}

const QUOTE = /^\s*>\s?/;

export function markdown(text, depth = 0) {
  const all = text.split('\n');
  const nodes = [];
  let open = [];
  const flush = () => {
    if (open.length) nodes.push(el('p', lines(open, depth)));
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
      nodes.push(el(`h${Math.min(heading[1].length + 1, 6)}`, inline(heading[2], depth)));
      i += 1;
    } else if (ITEM.test(line)) {
      flush();
      const [node, next] = list(all, i, depth);
      nodes.push(node);
      i = next;
    } else if (depth < MAX_DEPTH && QUOTE.test(line)) {
      flush();
      const body = [];
      for (; i < all.length && QUOTE.test(all[i]); i += 1) body.push(all[i].replace(QUOTE, ''));
      nodes.push(el('blockquote', markdown(body.join('\n'), depth + 1)));
    } else if (line.includes('|') && isRule(all[i + 1] ?? '')) {
      flush();
      const body = [];
      const head = line;
      for (i += 2; i < all.length && all[i].includes('|'); i += 1) body.push(all[i]);
      nodes.push(table(head, body, depth));
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
