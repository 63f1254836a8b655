// Small conveniences; every page works without them.
"use strict";

function localise(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(time.dateTime);
    if (Number.isNaN(moment.getTime())) continue;
    const two = (number) => String(number).padStart(2, "0");
    time.textContent =
      `${two(moment.getMonth() + 1)}-${two(moment.getDate())} ` +
      `${two(moment.getHours())}:${two(moment.getMinutes())}:${two(moment.getSeconds())}`;
    time.title = moment.toLocaleString("zh-CN");
  }
}

// A page that shows something moving fetches itself and swaps its contents.
async function refresh() {
  const main = document.getElementById("main");
  if (document.hidden || main.querySelector("details[open]")) return schedule(main);
  try {
    const answer = await fetch(location.href, { credentials: "same-origin" });
    if (answer.redirected) return location.reload();
    if (answer.ok) {
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = document.adoptNode(page.getElementById("main"));
      localise(fresh);
      main.replaceWith(fresh);
      return schedule(fresh);
    }
  } catch {
    // The gateway is away for a moment; the next try will tell.
  }
  schedule(main);
}

function schedule(main) {
  const seconds = Number(main.dataset.refresh);
  if (seconds > 0) setTimeout(refresh, seconds * 1000);
}

document.addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  if (question && !confirm(question)) {
    event.preventDefault();
    return;
  }
  // After the browser has taken the form's values: a second click finds the button off.
  setTimeout(() => {
    for (const button of event.target.querySelectorAll("button")) button.disabled = true;
  });
});

window.addEventListener("pageshow", (event) => {
  if (event.persisted) location.reload();
});

localise(document);
schedule(document.getElementById("main"));
document.querySelector('.top nav [aria-current="page"]')?.scrollIntoView({ inline: "center", block: "nearest" });
