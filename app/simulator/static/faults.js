// The fault switches: what WeCom does wrong next, through the JSON API of the simulator.
"use strict";

const NEXT = [
  ["下一次发送：502", { kind: "http", value: 502 }],
  ["下一次发送：6 秒后才答", { kind: "late", value: 6 }],
  ["下一次发送：慢 6 秒", { kind: "slow", value: 6 }],
  ["下一次发送：没收到就断开", { kind: "reset" }],
  ["下一次发送：收到后断开", { kind: "reset_after" }],
];
const KIND_WORDS = {
  errcode: (f) => `返回 errcode ${f.value}`, http: (f) => `HTTP ${f.value}`,
  slow: (f) => `慢 ${f.value} 秒`, late: (f) => `收下，${f.value} 秒后才答`,
  reset: () => "没收到就断开", reset_after: () => "收到后断开", lost: () => "应答丢失",
};

async function ask(path, body) {
  const response = body === undefined ? await fetch(path) : await post(path, body);
  const answer = await response.json();
  if (!response.ok) toast(answer.error);
  return answer;
}

function showRules(answer) {
  byId("rules").replaceChildren(...(answer.rules || []).map((rule) => {
    const often = rule.times ? `还有 ${rule.times} 次` : "一直";
    const chance = rule.probability < 1 ? `，每次 ${rule.probability * 100}%` : "";
    return make("li", "", `${rule.api}：${KIND_WORDS[rule.kind](rule)}（${often}${chance}）`);
  }));
}

const addFault = async (fault) => {
  const answer = await ask("/sim/faults", fault);
  if (answer.rules) showRules(answer);
};
const sendFault = (fault) => addFault({ api: "message/send", ...fault });

for (const [title, fault] of NEXT) {
  const button = make("button", "", title);
  button.type = "button";
  button.addEventListener("click", () => sendFault(fault));
  byId("fault-buttons").append(button);
}
const expire = make("button", "", "access_token 提前失效");
expire.type = "button";
expire.addEventListener("click", () => ask("/sim/token/expire", {}));
byId("fault-buttons").append(expire);

byId("errcode-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sendFault({ kind: "errcode", value: Number(byId("errcode").value) });
});
byId("event-form").addEventListener("submit", (event) => {
  event.preventDefault();
  ask("/sim/events", { user: state.current, event: byId("event").value });
});
byId("untrusted").addEventListener("change", (event) => {
  ask("/sim/trusted-ips", { ips: event.target.checked ? [] : null });
});
byId("approvals").addEventListener("click", () => ask("/sim/approvals", { count: 2 }));
byId("lost").addEventListener("click", () => addFault({ api: "callback", kind: "lost", times: 2 }));
byId("clear-faults").addEventListener("click", async () => {
  showRules(await (await fetch("/sim/faults", { method: "DELETE" })).json());
});
byId("pathological").addEventListener("click", async () => {
  const { cases } = await ask("/sim/pathological");
  const wrong = [];
  for (const { name } of cases) {
    const verdict = await ask("/sim/pathological", { name });
    if (!verdict.ok) wrong.push(`${verdict.title}：HTTP ${verdict.status}`);
  }
  toast(wrong.length ? wrong.join("；") : `${cases.length} 种异常请求都答得对`);
});
for (const tab of document.querySelectorAll("[data-panel]")) {
  tab.addEventListener("click", async () => {
    for (const other of document.querySelectorAll("[data-panel]")) {
      other.setAttribute("aria-selected", String(other === tab));
      byId(other.dataset.panel).hidden = other !== tab;
    }
    if (tab.dataset.panel !== "faults") return;
    showRules(await ask("/sim/faults"));
    byId("untrusted").checked = (await ask("/sim/trusted-ips")).ips !== null;
    if (!byId("event").options.length) {
      const { events } = await ask("/sim/state");
      byId("event").append(...events.map((name) => new Option(name, name)));
    }
  });
}
