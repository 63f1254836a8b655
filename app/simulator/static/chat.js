// The chat page: shows the events of GET /sim/stream, sends through POST /sim/messages.
"use strict";

const TYPING_LIMIT_MS = 120_000;
const TIME_GAP_S = 300;
// A short line that asks to wait is not the answer yet: the dots stay.
const ASKS_TO_WAIT = /请稍候|请稍等|稍等|正在处理|正在查|排队|收到/;

const byId = (id) => document.getElementById(id);
const view = {
  window: byId("window"), people: byId("people"), messages: byId("messages"),
  identity: byId("identity"), chips: byId("chips"), form: byId("form"), input: byId("input"),
  send: byId("send"), log: byId("log"), logLines: byId("log-lines"),
  logToggle: byId("log-toggle"), toast: byId("toast"), kind: byId("kind"),
};

const state = {
  bootId: "", employees: [], current: "", lastSeq: 0, wechat: false,
  conversations: new Map(), // user id -> {messages, delivery: Map, unread, typingSince}
  changes: new Map(), // user id + msg id -> {change, text}
};

function make(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function conversation(userId) {
  if (!state.conversations.has(userId)) {
    state.conversations.set(userId,
      { messages: [], delivery: new Map(), unread: 0, typingSince: 0 });
  }
  return state.conversations.get(userId);
}

function clockTime(seconds, withSeconds) {
  const options = { hour: "2-digit", minute: "2-digit", hour12: false };
  if (withSeconds) options.second = "2-digit";
  return new Date(seconds * 1000).toLocaleTimeString("zh-CN", options);
}

function avatarOf(employee) {
  const node = make("div", "avatar", employee.name.slice(-2));
  node.style.backgroundColor = employee.color;
  node.setAttribute("aria-hidden", "true");
  return node;
}

function appAvatar() {
  const node = make("div", "avatar");
  node.style.backgroundImage = "url(/static/hutong.svg)";
  node.setAttribute("aria-hidden", "true");
  return node;
}

// Text messages of an app may hold <a href="…">…</a>; WeCom shows it as a link, all else as is.
function fillText(node, text) {
  const link = /<a\s+href=(["'])(https?:\/\/[^"'<>]+)\1[^>]*>([^<]*)<\/a>/gi;
  let from = 0;
  for (const found of text.matchAll(link)) {
    node.append(text.slice(from, found.index));
    const anchor = make("a", "", found[3]);
    anchor.href = found[2];
    anchor.target = "_blank";
    anchor.rel = "noopener noreferrer";
    node.append(anchor);
    from = found.index + found[0].length;
  }
  node.append(text.slice(from));
}

const KIND_LABELS = {
  image: "[图片]", voice: "[语音]", video: "[视频]", file: "[文件]", location: "[位置]", link: "[链接]",
};
const NOT_IN_WECHAT = "暂不支持此消息类型，请在企业微信中查看";
const shownText = (message) => message.text || KIND_LABELS[message.kind] || "";
const changeOf = (message) => state.changes.get(`${message.user_id} ${message.msg_id}`);

// The markdown of an app message: headings, bold, links, inline code, quotes, three colours.
function fillMarkdown(node, text) {
  for (const line of text.split("\n")) {
    const heading = /^#{1,6} (.*)/.exec(line);
    const quote = /^> ?(.*)/.exec(line);
    const block = make("div", heading ? "md-heading" : quote ? "md-quote" : "");
    const spans = /\*\*(.+?)\*\*|`([^`]+)`|\[([^\]]+)\]\((https?:[^)\s]+)\)|<font color="(info|comment|warning)">(.*?)<\/font>/g;
    const content = heading ? heading[1] : quote ? quote[1] : line;
    let from = 0;
    for (const found of content.matchAll(spans)) {
      block.append(content.slice(from, found.index));
      const [whole, bold, code, label, href, color, colored] = found;
      if (href) {
        const anchor = make("a", "", label);
        Object.assign(anchor, { href, target: "_blank", rel: "noopener noreferrer" });
        block.append(anchor);
      } else if (color) {
        block.append(make("span", `md-${color}`, colored));
      } else {
        block.append(make(bold ? "strong" : "code", "", bold || code));
      }
      from = found.index + whole.length;
    }
    block.append(content.slice(from) || (from ? "" : "\u200b"));
    node.append(block);
  }
}

function fillCard(node, message) {
  const card = JSON.parse(message.card);
  const change = changeOf(message);
  node.classList.add("card");
  const title = change && !card.button_list ? change.text : shownText(message);
  node.append(make("div", "card-text", title));
  const row = make("div", "card-buttons");
  for (const button of card.button_list || []) {
    const node = make("button", "", change ? change.text : button.text);
    node.type = "button";
    node.disabled = Boolean(change);
    node.addEventListener("click", () => post("/sim/press", {
      user: message.user_id, msg_id: message.msg_id, card: message.card, key: button.key || "",
    }).catch(() => toast("按钮没有送到")));
    row.append(node);
  }
  node.append(row);
}

// Images are kept by the service for three days; one that is gone shows its words.
function fillImage(node, message) {
  const anchor = make("a");
  const image = make("img");
  const source = `/sim/media/${encodeURIComponent(message.media_id)}`;
  Object.assign(anchor, { href: source, target: "_blank", rel: "noopener noreferrer" });
  Object.assign(image, { src: source, alt: shownText(message) });
  image.addEventListener("load", () => { view.messages.scrollTop = view.messages.scrollHeight; });
  anchor.append(image);
  node.append(anchor);
}

function fillBubble(node, message) {
  if (message.sender === "employee" || message.kind === "text") fillText(node, shownText(message));
  else if (state.wechat && message.kind === "markdown") node.append(make("em", "", NOT_IN_WECHAT));
  else if (message.kind === "markdown") fillMarkdown(node, message.text);
  else if (message.kind === "template_card") fillCard(node, message);
  else if (message.kind === "image" && message.media_id) fillImage(node, message);
  else fillText(node, shownText(message));
}

function isTyping(talk) {
  return talk.typingSince > 0 && Date.now() - talk.typingSince < TYPING_LIMIT_MS;
}

function renderPeople() {
  const rows = state.employees.map((employee) => {
    const talk = conversation(employee.user_id);
    const last = talk.messages.at(-1);
    const button = make("button", "person");
    button.type = "button";
    button.dataset.user = employee.user_id;
    button.setAttribute("aria-current", String(employee.user_id === state.current));
    const middle = make("div");
    middle.append(make("span", "name", employee.name), make("span", "department", employee.department));
    const preview = isTyping(talk) ? "正在回答…" : last ? shownText(last).replace(/\s+/g, " ") : "";
    middle.append(make("div", "preview", preview));
    const side = make("div", "side", last ? clockTime(last.time_s) : "");
    if (talk.unread) side.append(make("br"), make("span", "badge", String(talk.unread)));
    button.append(avatarOf(employee), middle, side);
    button.addEventListener("click", () => open(employee.user_id));
    const item = make("li");
    item.append(button);
    return item;
  });
  view.people.replaceChildren(...rows);
}

function messageRow(message, talk, employee) {
  const mine = message.sender === "employee";
  const row = make("div", mine ? "row mine" : "row theirs");
  row.dataset.sender = message.sender;
  row.dataset.seq = message.seq;
  const bubble = make("div", "bubble");
  bubble.dataset.kind = message.kind;
  fillBubble(bubble, message);
  row.append(mine ? avatarOf(employee) : appAvatar(), bubble);
  const progress = mine ? talk.delivery.get(message.msg_id) : undefined;
  if (progress && progress !== "delivered") {
    const mark = make("span", `state ${progress}`, progress === "failed" ? "!" : "");
    if (progress === "failed") mark.title = "应用没有收到：回调三次重试都失败了，请看右上角的记录";
    row.append(mark);
  }
  return row;
}

function typingRow() {
  const row = make("div", "row theirs typing");
  const bubble = make("div", "bubble");
  const dots = make("span", "dots");
  dots.setAttribute("aria-label", "正在输入");
  dots.append(make("i"), make("i"), make("i"));
  bubble.append(dots);
  row.append(appAvatar(), bubble);
  return row;
}

function emptyNote() {
  const note = make("div", "empty");
  note.append(appAvatar(), make("strong", "", "问问公司的数据和制度"),
    "点下面的例句，或者直接输入。消息会加密回调给本机的应用，由本机的模型查库、计算、作答。");
  return note;
}

function renderMessages() {
  const talk = conversation(state.current);
  const employee = state.employees.find((e) => e.user_id === state.current);
  const nodes = [];
  let lastTime = 0;
  for (const message of talk.messages) {
    if (changeOf(message)?.change === "recalled") {
      nodes.push(make("div", "time", "应用撤回了一条消息"));
      continue;
    }
    if (message.time_s - lastTime > TIME_GAP_S) {
      nodes.push(make("div", "time", clockTime(message.time_s)));
    }
    lastTime = message.time_s;
    nodes.push(messageRow(message, talk, employee));
    if (message.cut_bytes) {
      nodes.push(make("div", "note", `企业微信在 2048 字节处截断，丢掉了 ${message.cut_bytes} 字节`));
    }
  }
  if (!nodes.length) nodes.push(emptyNote());
  if (isTyping(talk)) nodes.push(typingRow());
  // Rows already on screen must not play their entrance again.
  const known = Number(view.messages.dataset.lastSeq || 0);
  for (const node of nodes) {
    if (Number(node.dataset.seq || 0) <= known) node.style.animation = "none";
  }
  view.messages.replaceChildren(...nodes);
  view.messages.dataset.lastSeq = talk.messages.at(-1)?.seq ?? 0;
  view.messages.scrollTop = view.messages.scrollHeight;
}

function open(userId) {
  state.current = userId;
  const employee = state.employees.find((e) => e.user_id === userId);
  conversation(userId).unread = 0;
  view.identity.textContent = `以 ${employee.name}（${employee.department}）的身份`;
  view.window.classList.remove("listing");
  view.messages.dataset.lastSeq = Number.MAX_SAFE_INTEGER;
  sessionStorage.setItem("user", userId);
  render();
  view.input.focus({ preventScroll: true });
  // Entering the app's conversation is an event; apps use it for a greeting.
  post("/sim/events", { user: userId, event: "enter_agent" }).catch(() => {});
}

let scheduled = false;
function render() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => { scheduled = false; renderPeople(); renderMessages(); });
}

function toast(text) {
  view.toast.textContent = text;
  view.toast.hidden = false;
  setTimeout(() => { view.toast.hidden = true; }, 3500);
}

const post = (path, body) => fetch(path, {
  method: "POST",
  headers: { "Content-Type": "application/json" },
  body: JSON.stringify(body),
});

async function say(text, kind = "text") {
  try {
    const response = await post("/sim/messages", { user: state.current, text, kind });
    if (!response.ok) toast((await response.json()).error);
    return response.ok;
  } catch {
    toast("模拟器没有回答，演示还在运行吗？");
    return false;
  }
}

function onMessage(message) {
  const talk = conversation(message.user_id);
  talk.messages.push(message);
  if (message.sender === "employee") {
    // Events are replayed when the page opens: an old question gets no dots.
    if (Date.now() - message.time_s * 1000 < TYPING_LIMIT_MS) talk.typingSince = Date.now();
  } else {
    const waits = message.text.length < 60 && ASKS_TO_WAIT.test(message.text);
    if (!waits) talk.typingSince = 0;
    if (message.user_id !== state.current) talk.unread += 1;
  }
}

function onDelivery(delivery) {
  const talk = conversation(delivery.user_id);
  talk.delivery.set(delivery.msg_id, delivery.state);
  if (delivery.state === "failed") talk.typingSince = 0;
}

function onLog(line) {
  const item = make("li", line.ok ? "" : "bad");
  item.append(make("i", `arrow ${line.direction}`), make("span", "", line.title),
    make("time", "", clockTime(line.time_s, true)), make("p", "", line.detail));
  view.logLines.prepend(item);
  while (view.logLines.childElementCount > 300) view.logLines.lastElementChild.remove();
}

function listen() {
  const source = new EventSource(`/sim/stream?after=${state.lastSeq}`);
  const on = (name, handle) => source.addEventListener(name, (event) => {
    state.lastSeq = Number(event.lastEventId) || state.lastSeq;
    handle(JSON.parse(event.data));
    render();
  });
  on("boot", (bootId) => { if (bootId !== state.bootId) location.reload(); });
  on("message", onMessage);
  on("change", (change) => state.changes.set(`${change.user_id} ${change.msg_id}`, change));
  on("delivery", onDelivery);
  on("log", onLog);
}

function showLog(shown) {
  view.log.hidden = !shown;
  view.logToggle.setAttribute("aria-expanded", String(shown));
}

async function start() {
  const found = await (await fetch("/sim/state")).json();
  state.bootId = found.boot_id;
  state.employees = found.employees;
  view.chips.replaceChildren(...found.examples.map((text) => {
    const chip = make("button", "chip", text);
    chip.type = "button";
    chip.addEventListener("click", () => say(text));
    return chip;
  }));
  for (const [kind, title] of Object.entries(found.kinds)) {
    if (kind !== "text") view.kind.append(new Option(title, kind));
  }
  const before = sessionStorage.getItem("user");
  open(state.employees.some((e) => e.user_id === before) ? before : state.employees[0].user_id);
  listen();
  setInterval(render, 30_000);
}

view.input.addEventListener("input", () => { view.send.disabled = !view.input.value.trim(); });
view.input.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    view.form.requestSubmit();
  }
});
view.form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const text = view.input.value;
  if (!text.trim()) return;
  view.input.value = "";
  view.send.disabled = true;
  if (!await say(text)) { view.input.value = text; view.send.disabled = false; }
});
view.kind.addEventListener("change", () => {
  if (view.kind.value) say("", view.kind.value);
  view.kind.value = "";
});
for (const button of document.querySelectorAll("[data-view]")) {
  button.addEventListener("click", () => {
    state.wechat = button.dataset.view === "wechat";
    view.window.classList.toggle("wechat", state.wechat);
    for (const other of document.querySelectorAll("[data-view]")) {
      other.setAttribute("aria-checked", String(other === button));
    }
    render();
  });
}
byId("back").addEventListener("click", () => view.window.classList.add("listing"));
view.logToggle.addEventListener("click", () => showLog(view.log.hidden));
byId("log-close").addEventListener("click", () => showLog(false));
// Stay at the newest message when the drawer or the keyboard changes the size.
new ResizeObserver(() => { view.messages.scrollTop = view.messages.scrollHeight; })
  .observe(view.messages);
start();
