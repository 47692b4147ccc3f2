// The page: a chat over /v1/chat/completions, and the line as /health and /line tell it.
import { markdown } from '/markdown.js';

const $ = (id) => document.getElementById(id);
const FIELDS = ['system', 'temperature', 'top_p', 'max_tokens', 'seed'];
const CHAT = 'brigade-chat';
const SETTINGS = 'brigade-settings';
const KEY = 'brigade-key';
const LINE_EVERY_MS = 1000;
const MAX_EVENTS = 30;

let chat = [];
let running = null;

const read = (store, key, otherwise) => {
  try {
    return JSON.parse(store.getItem(key)) ?? otherwise;
  } catch {
    return otherwise;
  }
};
const write = (store, key, value) => {
  try {
    store.setItem(key, JSON.stringify(value));
  } catch {
    // A browser that keeps nothing: the chat lives as long as the page.
  }
};

const el = (name, className, ...children) => {
  const node = document.createElement(name);
  if (className) node.className = className;
  node.append(...children);
  return node;
};
const button = (text, act) => {
  const node = el('button', '', text);
  node.type = 'button';
  node.addEventListener('click', act);
  return node;
};
const headers = () => {
  const all = { 'content-type': 'application/json' };
  if ($('key').value) all.authorization = `Bearer ${$('key').value}`;
  return all;
};

// A text that cannot be shown as Markdown must not keep the others from being shown.
function draw(node, text) {
  node.replaceChildren();
  try {
    for (const part of markdown(text)) node.append(part);
  } catch {
    node.textContent = text;
  }
}

// One message's element, and the function that shows it as it is now.
function shown(message, index) {
  const thoughts = el('div');
  const details = el('details', 'thoughts', el('summary', '', 'Reasoning'), thoughts);
  const text = el('div', 'text');
  const tools = el('div', 'tools');
  const item = el('li', message.role, details, text, tools);
  const show = () => {
    details.hidden = !message.reasoning_content;
    thoughts.textContent = message.reasoning_content ?? '';
    if (message.role === 'user') text.textContent = message.content;
    else draw(text, message.content);
    tools.replaceChildren();
    if (message.error) tools.append(el('span', 'error', message.error));
    const busy = running?.message === message;
    if (message.role === 'assistant' && !busy) {
      if (index === chat.length - 1) tools.append(button('Regenerate', regenerate));
      if (message.speed) tools.append(el('span', '', message.speed));
    }
    if (message.role === 'user' && !running && index === chat.length - 2) tools.append(button('Edit', () => edit(index)));
    tools.hidden = !tools.childNodes.length;
  };
  show();
  return [item, show];
}

function showAll() {
  const list = $('messages');
  list.replaceChildren();
  if (!chat.length) list.append(el('li', 'empty', 'Ask something. The model answers from the line of workers.'));
  chat.forEach((message, i) => list.append(shown(message, i)[0]));
  list.scrollTop = list.scrollHeight;
  $('send').hidden = Boolean(running);
  $('stop').hidden = !running;
}

const keep = () => write(localStorage, CHAT, chat);

function edit(index) {
  $('input').value = chat[index].content;
  chat.length = index;
  keep();
  showAll();
  $('input').focus();
}

function regenerate() {
  if (running) return;
  if (chat.at(-1)?.role === 'assistant') chat.pop();
  answer();
}

function body() {
  const number = (id) => ($(id).value === '' ? undefined : Number($(id).value));
  const past = chat.map(({ role, content, reasoning_content }) => ({ role, content, reasoning_content }));
  const system = $('system').value.trim();
  const messages = system ? [{ role: 'system', content: system }, ...past] : past;
  return {
    messages, stream: true, stream_options: { include_usage: true }, temperature: number('temperature'),
    top_p: number('top_p'), max_tokens: number('max_tokens'), seed: number('seed'),
  };
}

// Events of a stream, as objects.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    held += value;
    for (let end; (end = held.indexOf('\n')) >= 0; held = held.slice(end + 1)) {
      const line = held.slice(0, end).trimEnd();
      if (line === 'data: [DONE]') return;
      if (line.startsWith('data: ')) yield JSON.parse(line.slice(6));
    }
  }
}

async function answer() {
  const message = { role: 'assistant', content: '', reasoning_content: '' };
  const request = JSON.stringify(body());
  running = { message, abort: new AbortController() };
  chat.push(message);
  showAll();
  const list = $('messages');
  const [item, show] = shown(message, chat.length - 1);
  list.lastChild.replaceWith(item);
  let due = false;
  const soon = () => {
    if (due) return;
    due = true;
    requestAnimationFrame(() => {
      due = false;
      const follow = list.scrollHeight - list.scrollTop - list.clientHeight < 80;
      show();
      if (follow) list.scrollTop = list.scrollHeight;
    });
  };
  try {
    const response = await fetch('/v1/chat/completions', {
      method: 'POST', headers: headers(), body: request, signal: running.abort.signal,
    });
    if (!response.ok) {
      const told = await response.json().catch(() => null);
      throw new Error(told?.error?.message ?? `the server answered ${response.status}`);
    }
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      const delta = event.choices?.[0]?.delta ?? {};
      message.content += delta.content ?? '';
      message.reasoning_content += delta.reasoning_content ?? '';
      if (event.timings) message.speed = `${event.timings.predicted_per_second.toFixed(1)} tokens/s`;
      if (event.usage) {
        const { prompt_tokens, completion_tokens, prompt_tokens_details } = event.usage;
        $('counts').textContent =
          `${prompt_tokens} tokens in (${prompt_tokens_details.cached_tokens} reused), ${completion_tokens} out`;
      }
      soon();
    }
  } catch (error) {
    if (error.name === 'AbortError') message.error = 'stopped';
    else message.error = error.message;
  }
  if (!message.reasoning_content) delete message.reasoning_content;
  running = null;
  keep();
  showAll();
  $('input').focus();
}

// ---- The line.

const past = { at: 0, generated: 0, states: [] };

function facts(line) {
  const now = performance.now();
  const rate = past.at ? ((line.generated_tokens - past.generated) * 1000) / (now - past.at) : 0;
  Object.assign(past, { at: now, generated: line.generated_tokens });
  const percent = line.kv_blocks ? ` (${Math.round((100 * line.kv_blocks_used) / line.kv_blocks)} %)` : '';
  return {
    Workers: `${line.workers} there, ${line.spare} spare`,
    Streams: `${line.running} run, ${line.waiting} wait`,
    'Tokens/s': rate.toFixed(1),
    'KV pages': `${line.kv_blocks_used} of ${line.kv_blocks}${percent}`,
    Kept: `${line.kept} sequences`,
    'On the line': `${line.in_flight} ubatches`,
    'Broke so far': `${line.down} times`,
  };
}

function showStages({ stages, layers }) {
  const items = stages.map(({ stage, busy_share, memory_bytes }) => {
    const bar = el('progress');
    bar.max = 1;
    bar.value = busy_share;
    bar.setAttribute('aria-label', `stage ${stage} busy`);
    const range = layers[stage] ? `, layers ${layers[stage][0]} to ${layers[stage][1] - 1}` : '';
    const told = `${Math.round(busy_share * 100)} %, ${(memory_bytes / 2 ** 30).toFixed(2)} GiB`;
    return el('li', '', el('div', 'row', el('span', '', `Stage ${stage}${range}`), el('span', '', told)), bar);
  });
  $('stages').replaceChildren(...items);
}

function note(state) {
  if (past.states[0] === state) return;
  past.states.unshift(state);
  past.states.length = Math.min(past.states.length, MAX_EVENTS);
  $('events').prepend(el('li', '', `${new Date().toLocaleTimeString()} ${state}`));
  while ($('events').childNodes.length > MAX_EVENTS) $('events').lastChild.remove();
}

async function look() {
  let state = 'unreachable';
  try {
    const health = await (await fetch('/health', { headers: headers() })).json();
    state = health.status;
    if (health.seconds_left) state += `, ${Math.ceil(health.seconds_left)} s left`;
    if (!$('line').hidden) {
      const response = await fetch('/line', { headers: headers() });
      if (response.ok) {
        const line = await response.json();
        const rows = Object.entries(facts(line)).flatMap(([k, v]) => [el('dt', '', k), el('dd', '', v)]);
        $('facts').replaceChildren(...rows);
        showStages(line);
      }
    }
  } catch {
    // The next look may reach it.
  }
  $('state').textContent = state === 'ok' ? 'ready' : state;
  $('state').dataset.state = state.split(',')[0];
  note(`the line is ${state === 'ok' ? 'ready' : state}`);
  setTimeout(look, LINE_EVERY_MS);
}

async function nameModel() {
  try {
    const models = await (await fetch('/v1/models', { headers: headers() })).json();
    const { id, context_length } = models.data[0];
    $('model').textContent = `${id}, context ${context_length}`;
    document.title = `${id} - brigade`;
  } catch {
    $('model').textContent = '';
  }
}

// ---- What people do.

function toggle(id) {
  const panel = $(id);
  panel.hidden = !panel.hidden;
  for (const other of ['line', 'settings']) {
    if (other !== id) $(other).hidden = true;
    $(`show-${other}`).setAttribute('aria-expanded', String(!$(other).hidden));
  }
}

$('ask').addEventListener('submit', (event) => {
  event.preventDefault();
  const text = $('input').value.trim();
  if (!text || running) return;
  $('input').value = '';
  chat.push({ role: 'user', content: text });
  answer();
});
$('input').addEventListener('keydown', (event) => {
  if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $('ask').requestSubmit();
  }
});
document.addEventListener('keydown', (event) => {
  if (event.key === 'Escape') running?.abort.abort();
});
$('stop').addEventListener('click', () => running?.abort.abort());
$('new').addEventListener('click', () => {
  running?.abort.abort();
  chat = [];
  keep();
  showAll();
  $('counts').textContent = '';
  $('input').focus();
});
for (const id of ['line', 'settings']) $(`show-${id}`).addEventListener('click', () => toggle(id));
for (const id of FIELDS) {
  $(id).addEventListener('change', () => {
    write(localStorage, SETTINGS, Object.fromEntries(FIELDS.map((field) => [field, $(field).value])));
  });
}
$('key').addEventListener('change', () => {
  write(sessionStorage, KEY, $('key').value);
  nameModel();
});

for (const [id, value] of Object.entries(read(localStorage, SETTINGS, {}))) if (FIELDS.includes(id)) $(id).value = value;
$('key').value = read(sessionStorage, KEY, '');
chat = read(localStorage, CHAT, []);
showAll();
nameModel();
look();
