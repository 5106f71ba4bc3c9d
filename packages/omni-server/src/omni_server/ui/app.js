// The page: tabs by mouse and by arrow keys, and what the server is.

import { setUpChat } from "./chat.js";
import { ask, say } from "./server.js";
import { listVoices, setUpSpeech } from "./speech.js";
import { setUpTalk } from "./talk.js";

const tabs = [...document.querySelectorAll("[role=tab]")];
const server = { model: "" };

function select(tab, focus = false) {
  for (const other of tabs) {
    const chosen = other === tab;
    other.setAttribute("aria-selected", String(chosen));
    other.tabIndex = chosen ? 0 : -1;
    document.getElementById(other.getAttribute("aria-controls")).hidden = !chosen;
  }
  if (focus) tab.focus();
}

for (const [index, tab] of tabs.entries()) {
  tab.addEventListener("click", () => select(tab));
  tab.addEventListener("keydown", ({ key }) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[key];
    if (step) select(tabs[(index + step + tabs.length) % tabs.length], true);
    else if (key === "Home") select(tabs[0], true);
    else if (key === "End") select(tabs.at(-1), true);
  });
}

async function meet() {
  const status = document.getElementById("server");
  try {
    server.model = (await (await ask("v1/models")).json()).data[0].id;
    say(status, server.model);
    await listVoices();
  } catch (error) {
    say(status, error.message, true);
  }
}

document.getElementById("key").addEventListener("change", meet);
setUpTalk(server);
setUpSpeech();
setUpChat(server);
meet();
