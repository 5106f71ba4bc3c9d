// The page: tabs by mouse and by arrow keys, and what the server is.

import { setUpChat } from "./chat.js";
import { say, servedModel } from "./server.js";
import { listVoices, setUpSpeech, showVoices } from "./speech.js";
import { setUpTalk } from "./talk.js";

const tabs = [...document.querySelectorAll("[role=tab]")];
let meetings = 0;

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
  const meeting = ++meetings;
  try {
    const model = await servedModel(true);
    if (meeting !== meetings) return; // the key has changed since: what the server says to the new one counts
    say(status, model);
    const voices = await listVoices();
    if (meeting === meetings) showVoices(voices);
  } catch (error) {
    if (meeting === meetings) say(status, error.message, true);
  }
}

document.getElementById("key").addEventListener("change", meet);
setUpTalk();
setUpSpeech();
setUpChat();
meet();
