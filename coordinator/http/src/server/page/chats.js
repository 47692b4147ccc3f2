// The chats of this browser, each under a key of its own, so that one that is written disturbs no other. Where there is no
// more room, the oldest go.

const INDEX = 'brigade-chats';
const CHAT = 'brigade-chat-';
const ONLY = 'brigade-chat'; // What a page had that knew one chat.
const MAX_CHATS = 200;
const MAX_TITLE = 60;
const ROLES = ['user', 'assistant'];

// Where things are kept; nowhere in a browser that lets no page keep anything.
const store = (name) => {
  try {
    return window[name];
  } catch {
    return null;
  }
};
export const local = store('localStorage');
export const session = store('sessionStorage');

export const read = (store, key, otherwise) => {
  try {
    return JSON.parse(store.getItem(key)) ?? otherwise;
  } catch {
    return otherwise;
  }
};

// Whether it was kept: a browser may keep nothing, or have no more room.
export const write = (store, key, value) => {
  try {
    store.setItem(key, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
};

const clear = (key) => {
  try {
    local.removeItem(key);
  } catch {
    // Nothing was kept.
  }
};

export const newId = () => `${Date.now().toString(36)}${Math.random().toString(36).slice(2, 8)}`;

export const create = () => ({ id: newId(), messages: [] });

// What is kept may be another program's that was at this address before: what is of another form is left out.
const kept = (key, is) => {
  const all = read(local, key, []);
  return Array.isArray(all) ? all.filter(is) : [];
};
const isText = (value) => typeof value === 'string';

// Newest first: {id, title, at}.
export const list = () => kept(INDEX, (entry) => isText(entry?.id) && isText(entry.title));

const messagesAt = (key) => kept(key, (message) => ROLES.includes(message?.role) && isText(message.content));

export function load(id) {
  const messages = messagesAt(CHAT + id);
  return messages.length ? { id, messages } : null;
}

// Calls `changed` with the id of each chat that another page of this browser has kept, and with nothing where the list
// has changed.
export function onChange(changed) {
  window.addEventListener('storage', ({ key, newValue }) => {
    if (key === INDEX) changed(undefined);
    else if (key?.startsWith(CHAT) && newValue !== null) changed(key.slice(CHAT.length));
  });
}

const title = (chat) => {
  const said = chat.messages.find((message) => message.role === 'user')?.content ?? '';
  return said.trim().replace(/\s+/g, ' ').slice(0, MAX_TITLE) || 'New chat';
};

export function remove(id) {
  clear(CHAT + id);
  write(local, INDEX, list().filter((entry) => entry.id !== id));
}

// Keeps a chat that has messages; of one that has none, nothing is left. One that has no room even alone costs the
// others nothing: it stays as it was last kept.
export function keep(chat) {
  if (!chat.messages.length) return remove(chat.id);
  const others = list().filter((entry) => entry.id !== chat.id);
  for (const old of others.splice(MAX_CHATS - 1)) clear(CHAT + old.id);
  const gone = [];
  while (!write(local, CHAT + chat.id, chat.messages)) {
    const old = others.pop();
    if (!old) {
      for (const [entry, messages] of gone.reverse()) if (write(local, CHAT + entry.id, messages)) others.push(entry);
      break;
    }
    gone.push([old, messagesAt(CHAT + old.id)]);
    clear(CHAT + old.id);
  }
  const own = messagesAt(CHAT + chat.id).length ? [{ id: chat.id, title: title(chat), at: Date.now() }] : [];
  write(local, INDEX, [...own, ...others]);
}

// The chat of a page that knew one is the first of those that this one knows.
export function takeOver() {
  const messages = messagesAt(ONLY);
  if (messages.length) keep({ ...create(), messages });
  clear(ONLY);
}
