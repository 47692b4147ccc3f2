// The page: chats over /v1/chat/completions, and the line as /health and /line tell it. Answers are resumable streams: they go
// on while the page is reloaded, or shows another chat.
import * as chats from '/chats.js';
import { local, read, session, write } from '/chats.js';
import { markdown } from '/markdown.js';

const $ = (id) => document.getElementById(id);
const FIELDS = ['system', 'temperature', 'top_p', 'max_tokens', 'seed'];
const CURRENT = 'brigade-current';
const PAGE = 'brigade-page';
const SETTINGS = 'brigade-settings';
const KEY = 'brigade-key';
const MODEL = 'brigade-model';
const LINE_EVERY_MS = 1000;
const KEEP_EVERY_MS = 500;
const MAX_EVENTS = 30;

// The chat that is shown, and all that were opened by this page, by their ids.
let chat = chats.create();
const opened = new Map();
// The answers that are under way, by the ids of their chats.
const running = new Map();
const busy = () => running.get(chat.id);
// This page by a name that it keeps when it is loaded again, and the answers that it has asked for since.
const page = read(session, PAGE, null) ?? chats.newId();
const asked = new WeakSet();

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
    const messages = chat.messages;
    if (message.role === 'assistant' && busy()?.message !== message) {
      if (index === messages.length - 1) tools.append(button('Regenerate', regenerate));
      if (message.speed) tools.append(el('span', '', message.speed));
    }
    if (message.role === 'user' && !busy() && index === messages.length - 2) tools.append(button('Edit', () => edit(index)));
    tools.hidden = !tools.childNodes.length;
  };
  show();
  return [item, show];
}

function showAll() {
  const list = $('messages');
  list.replaceChildren();
  if (!chat.messages.length) list.append(el('li', 'empty', 'Ask something. The model answers from the line of workers.'));
  chat.messages.forEach((message, i) => {
    const [item, show] = shown(message, i);
    if (busy()?.message === message) busy().show = show;
    list.append(item);
  });
  list.scrollTop = list.scrollHeight;
  $('send').hidden = Boolean(busy());
  $('stop').hidden = !busy();
  showChats();
}

// The list of chats, with what can be done with each.
function showChats() {
  const items = chats.list().map(({ id, title, at }) => {
    const open = button(title, () => show(id));
    open.title = new Date(at).toLocaleString();
    if (id === chat.id) open.setAttribute('aria-current', 'true');
    const away = button('Delete', () => forget(id));
    away.setAttribute('aria-label', `Delete ${title}`);
    return el('li', running.has(id) ? 'busy' : '', open, away);
  });
  $('kept').replaceChildren(...items);
}

function show(id) {
  chat = opened.get(id) ?? chats.load(id) ?? chats.create();
  opened.set(chat.id, chat);
  write(session, CURRENT, chat.id);
  $('counts').textContent = '';
  readOn(chat);
  showAll();
  $('input').focus();
}

// Another page of this browser has kept a chat, or the list has changed. What is under way here is left alone.
function changedElsewhere(id) {
  const changed = id && !running.has(id) && opened.get(id);
  if (!changed) return showChats();
  changed.messages = chats.load(id)?.messages ?? [];
  if (changed !== chat) return showChats();
  if (changed.messages.at(-1)?.last) readOn(changed);
  showAll();
}

function forget(id) {
  stop(id);
  opened.delete(id);
  chats.remove(id);
  if (id === chat.id) show(chats.list()[0]?.id);
  else showChats();
}

function edit(index) {
  $('input').value = chat.messages[index].content;
  chat.messages.length = index;
  chats.keep(chat);
  showAll();
  $('input').focus();
}

function regenerate() {
  if (busy()) return;
  if (chat.messages.at(-1)?.role === 'assistant') chat.messages.pop();
  answer(chat);
}

function body(messagesOf) {
  const number = (id) => ($(id).value === '' ? undefined : Number($(id).value));
  const past = messagesOf.map(({ role, content, reasoning_content }) => ({ role, content, reasoning_content }));
  const system = $('system').value.trim();
  const messages = system ? [{ role: 'system', content: system }, ...past] : past;
  return {
    messages, stream: true, resumable: true, stream_options: { include_usage: true }, temperature: number('temperature'),
    top_p: number('top_p'), max_tokens: number('max_tokens'), seed: number('seed'), model: chosen(),
  };
}

// Events of a stream, as objects with the ids by which it is read on.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let [held, id] = ['', null];
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Error('the connection was cut');
    held += value;
    for (let end; (end = held.indexOf('\n')) >= 0; held = held.slice(end + 1)) {
      const line = held.slice(0, end).trimEnd();
      if (line.startsWith('id: ')) id = line.slice(4);
      if (line === 'data: [DONE]') return;
      if (line.startsWith('data: ')) yield [JSON.parse(line.slice(6)), id];
    }
  }
}

async function told(response) {
  const body = await response.json().catch(() => null);
  const error = new Error(body?.error?.message ?? `the server answered ${response.status}`);
  return Object.assign(error, { status: response.status });
}

// Asks for an answer; where the server has no room for one that can be read on, for one that cannot.
async function ask(of, signal) {
  const request = body(of.messages.slice(0, -1));
  const post = (sent) => fetch('/v1/chat/completions', { method: 'POST', headers: headers(), body: JSON.stringify(sent), signal });
  const response = await post(request);
  if (response.status !== 503) return response;
  const error = await told(response);
  if (!error.message.includes('resumable')) throw error;
  return post({ ...request, resumable: false });
}

function answer(of) {
  const message = { role: 'assistant', content: '', reasoning_content: '', page };
  of.messages.push(message);
  asked.add(message);
  follow(of, message, ask);
}

// Goes on with an answer that was under way when the page was left. One that had not begun is asked for again, once, by
// the page that had asked for it.
function readOn(of) {
  const message = of.messages.at(-1);
  if (running.has(of.id) || message?.role !== 'assistant' || !message.under_way) return;
  delete message.error;
  delete message.refused;
  if (!message.last && message.page === page && !asked.has(message)) {
    of.messages.pop();
    answer(of);
    return;
  }
  if (!message.last) {
    delete message.under_way;
    message.error = 'the connection was lost before the answer began';
    chats.keep(of);
    return;
  }
  const from = (_, signal) => fetch(`/v1/streams/${message.last.split('/')[0]}`, {
    headers: { ...headers(), 'last-event-id': message.last }, signal,
  });
  follow(of, message, from);
}

// Reads an answer to its end into a message of a chat; `from` gives the response. The page that asked keeps what there is;
// one that reads along would undo what that one has kept.
async function follow(of, message, from) {
  const isOwn = message.page === page;
  const run = { message, isOwn, abort: new AbortController(), show: () => {}, due: false, kept: -Infinity };
  running.set(of.id, run);
  message.under_way = true;
  if (isOwn) chats.keep(of);
  showAll();
  try {
    const response = await from(of, run.abort.signal);
    if (!response.ok) throw await told(response);
    for await (const [event, id] of events(response)) {
      if (id) message.last = id;
      if (run.stopped) {
        cancel(message);
        break;
      }
      if (event.error) throw new Error(event.error.message);
      take(of, message, event);
      soon(of, run);
    }
    delete message.under_way;
    if (run.stopped) message.error = 'stopped';
  } catch (error) {
    if (run.stopped) message.error = 'stopped';
    else message.error = error.status === 401 ? `${error.message} (in the settings)` : error.message;
    message.refused = error.status === 401;
    // What a key opens is read on when it is there; a page that is left reads on when it comes back.
    if (run.stopped || (error.status && error.status !== 401)) delete message.under_way;
  }
  if (!message.reasoning_content) delete message.reasoning_content;
  if (!message.under_way) for (const field of ['last', 'page']) delete message[field];
  running.delete(of.id);
  if (isOwn) chats.keep(of);
  else keepRead(of);
  if (message.under_way && !message.refused) setTimeout(() => readOn(of), LINE_EVERY_MS);
  if (of !== chat) return showChats();
  showAll();
  $('input').focus();
}

// An answer was read along to its end. Unless its own page went away before that, it has kept it.
function keepRead(of) {
  const kept = chats.load(of.id)?.messages ?? [];
  if (kept.length === of.messages.length && kept.at(-1).under_way) chats.keep(of);
  else of.messages = kept;
}

function take(of, message, event) {
  const delta = event.choices?.[0]?.delta ?? {};
  message.content += delta.content ?? '';
  message.reasoning_content = (message.reasoning_content ?? '') + (delta.reasoning_content ?? '');
  if (event.timings) message.speed = `${event.timings.predicted_per_second.toFixed(1)} tokens/s`;
  if (event.usage && of === chat) {
    const { prompt_tokens, completion_tokens, prompt_tokens_details } = event.usage;
    $('counts').textContent =
      `${prompt_tokens} tokens in (${prompt_tokens_details.cached_tokens} reused), ${completion_tokens} out`;
  }
}

// Shows what there is with the next frame, and keeps it now and then: text and place in the stream together.
function soon(of, run) {
  const now = performance.now();
  if (run.isOwn && now - run.kept > KEEP_EVERY_MS) {
    run.kept = now;
    chats.keep(of);
  }
  if (run.due || of !== chat) return;
  run.due = true;
  requestAnimationFrame(() => {
    run.due = false;
    if (of !== chat) return;
    const list = $('messages');
    const follows = list.scrollHeight - list.scrollTop - list.clientHeight < 80;
    run.show();
    if (follows) list.scrollTop = list.scrollHeight;
  });
}

// Nobody wants the rest of an answer.
function cancel(message) {
  if (!message.last) return;
  fetch(`/v1/streams/${message.last.split('/')[0]}`, { method: 'DELETE', headers: headers() }).catch(() => {});
}

function stop(id) {
  const run = running.get(id);
  if (!run || run.stopped) return;
  run.stopped = true;
  // What has no id yet is cancelled when it has one.
  if (!run.message.last) return;
  cancel(run.message);
  run.abort.abort();
}

// ---- The line.

const past = { at: 0, generated: 0, states: [] };

// Of drafts that were compared with what was drawn, how many were right: all, and those right behind the last token.
function guesses({ drafts, drawn_parts, generated_tokens }) {
  const [right, wrong] = drafts.reduce(([r, w], at) => [r + at.right, w + at.wrong], [0, 0]);
  if (right + wrong === 0) return 'none yet';
  const percent = (r, w) => (r + w ? `${Math.round((100 * r) / (r + w))} %` : '-');
  const by = drafts.map(({ depth, right, wrong }) => `${depth}: ${percent(right, wrong)}`).join(', ');
  return `${percent(right, wrong)} right (by how far ahead ${by}); ${(generated_tokens / drawn_parts).toFixed(2)} tokens a pass`;
}

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
    Guesses: guesses(line),
    'Broke so far': `${line.down} times`,
  };
}

function showStages({ stages, layers }) {
  const items = stages.map(({ stage, busy_share, memory_bytes }) => {
    const bar = el('progress');
    bar.max = 1;
    bar.value = busy_share;
    bar.setAttribute('aria-label', `stage ${stage} busy`);
    const range = layers[stage] ? `, layers ${layers[stage][0]}..${layers[stage][1]}` : '';
    const told = `${Math.round(busy_share * 100)} %, ${(memory_bytes / 2 ** 30).toFixed(2)} GiB`;
    return el('li', '', el('div', 'row', el('span', '', `Stage ${stage}${range}`), el('span', '', told)), bar);
  });
  $('stages').replaceChildren(...items);
}

const mib = (bytes) => `${(bytes / 2 ** 20).toFixed(1)} MiB`;

// What is kept of the prompts of whoever looks.
function showPrefixes({ states, bytes, hits, largest }) {
  $('prefix-sum').textContent = states ? `${states} states, ${mib(bytes)}, ${hits} hits` : 'none';
  $('prefixes').hidden = !states;
  const cells = ({ tokens, bytes, idle_seconds, hits }) => [tokens, mib(bytes), `${idle_seconds} s ago`, hits];
  const rows = largest.map((state) => el('tr', '', ...cells(state).map((text) => el('td', '', String(text)))));
  $('prefixes').tBodies[0].replaceChildren(...rows);
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
    const health = await (await fetch(ofModel('/health'), { headers: headers() })).json();
    state = health.status;
    if (health.seconds_left) state += `, ${Math.ceil(health.seconds_left)} s left`;
    if (!$('line').hidden) {
      const response = await fetch(ofModel('/line'), { headers: headers() });
      if (response.ok) {
        const line = await response.json();
        const rows = Object.entries(facts(line)).flatMap(([k, v]) => [el('dt', '', k), el('dd', '', v)]);
        $('facts').replaceChildren(...rows);
        showStages(line);
        showPrefixes(line.prefixes);
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

// The model that was chosen, where there are several.
function chosen() {
  return $('choose').hidden ? undefined : $('choose').value;
}

// An address about the model that was chosen.
function ofModel(path) {
  return chosen() === undefined ? path : `${path}?model=${encodeURIComponent(chosen())}`;
}

async function nameModel() {
  try {
    const models = await (await fetch('/v1/models', { headers: headers() })).json();
    const several = models.data.length > 1;
    const wanted = several ? read(local, MODEL, '') : '';
    const { id, context_length } = models.data.find((model) => model.id === wanted) ?? models.data[0];
    $('choose').replaceChildren(...models.data.map((model) => el('option', '', model.id)));
    $('choose').value = id;
    $('choose').hidden = !several;
    $('model').textContent = several ? `context ${context_length}` : `${id}, context ${context_length}`;
    document.title = `${id} - brigade`;
  } catch {
    $('model').textContent = '';
  }
}

// ---- What people do.

const PANELS = ['chats', 'line', 'settings'];

function toggle(id) {
  const panel = $(id);
  panel.hidden = !panel.hidden;
  for (const other of PANELS) {
    if (other !== id) $(other).hidden = true;
    $(`show-${other}`).setAttribute('aria-expanded', String(!$(other).hidden));
  }
}

$('ask').addEventListener('submit', (event) => {
  event.preventDefault();
  const text = $('input').value.trim();
  if (!text || busy()) return;
  $('input').value = '';
  chat.messages.push({ role: 'user', content: text });
  answer(chat);
});
$('input').addEventListener('keydown', (event) => {
  if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $('ask').requestSubmit();
  }
});
document.addEventListener('keydown', (event) => {
  if (event.key === 'Escape') stop(chat.id);
});
$('stop').addEventListener('click', () => stop(chat.id));
$('new').addEventListener('click', () => show(undefined));
for (const id of PANELS) $(`show-${id}`).addEventListener('click', () => toggle(id));
for (const id of FIELDS) {
  $(id).addEventListener('change', () => {
    write(local, SETTINGS, Object.fromEntries(FIELDS.map((field) => [field, $(field).value])));
  });
}
$('choose').addEventListener('change', () => {
  write(local, MODEL, $('choose').value);
  nameModel();
});
$('key').addEventListener('change', () => {
  write(session, KEY, $('key').value);
  nameModel();
  readOn(chat);
});

for (const [id, value] of Object.entries(read(local, SETTINGS, {}))) if (FIELDS.includes(id)) $(id).value = value;
$('key').value = read(session, KEY, '');
write(session, PAGE, page);
chats.takeOver();
chats.onChange(changedElsewhere);
show(read(session, CURRENT, undefined) ?? chats.list()[0]?.id);
nameModel();
look();
