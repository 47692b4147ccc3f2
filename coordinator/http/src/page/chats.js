// The chats of this browser, each under a key of its own, so that one that is written disturbs no other. Where there is no
// more room, the oldest go.

const INDEX = 'brigade-chats';
const CHAT = 'brigade-chat-';
const ONLY = 'brigade-chat'; // What a page had that knew one chat.
const MAX_CHATS = 200;
const MAX_TITLE = 60;

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

const newId = () => `${Date.now().toString(36)}${Math.random().toString(36).slice(2, 8)}`;

export const create = () => ({ id: newId(), messages: [] });

// Newest first: {id, title, at}.
export const list = () => read(local, INDEX, []).filter((entry) => entry?.id);

export function load(id) {
  const messages = read(local, CHAT + id, null);
  return Array.isArray(messages) ? { id, messages } : null;
}

const title = (chat) => {
  const said = chat.messages.find((message) => message.role === 'user')?.content ?? '';
  return said.trim().replace(/\s+/g, ' ').slice(0, MAX_TITLE) || 'New chat';
};

export function remove(id) {
  clear(CHAT + id);
  write(local, INDEX, list().filter((entry) => entry.id !== id));
}

// Keeps a chat that has messages; of one that has none, nothing is left.
export function keep(chat) {
  if (!chat.messages.length) return remove(chat.id);
  const others = list().filter((entry) => entry.id !== chat.id);
  for (const old of others.splice(MAX_CHATS - 1)) clear(CHAT + old.id);
  while (!write(local, CHAT + chat.id, chat.messages) && others.length) {
    clear(CHAT + others.pop().id);
  }
  write(local, INDEX, [{ id: chat.id, title: title(chat), at: Date.now() }, ...others]);
}

// The chat of a page that knew one is the first of those that this one knows.
export function takeOver() {
  const messages = read(local, ONLY, []);
  if (Array.isArray(messages) && messages.length) keep({ ...create(), messages });
  clear(ONLY);
}
