// The Chat tab: text, an image or a sound in; text, and speech if it is wanted, out.

import { ask, events, fromBase64, say, servedModel, toBase64 } from "./server.js";
import { Player, RATE } from "./sound.js";

const form = document.getElementById("chat-form");
const log = document.getElementById("chat-log");
const state = document.getElementById("chat-state");
const text = document.getElementById("chat-text");
const file = document.getElementById("chat-file");
const stop = document.getElementById("chat-stop");
const messages = [];
let aborter = null;
let player = null;

function row(kind, name, content = "") {
  const item = document.createElement("li");
  item.className = kind;
  const who = document.createElement("small");
  who.textContent = name;
  item.append(who, document.createTextNode(content));
  log.append(item);
  item.scrollIntoView({ block: "nearest" });
  return item;
}

async function attached(chosen) {
  const data = toBase64(new Uint8Array(await chosen.arrayBuffer()));
  const url = `data:${chosen.type};base64,${data}`;
  if (chosen.type.startsWith("image/")) return { part: { type: "image_url", image_url: { url } }, url };
  return { part: { type: "audio_url", audio_url: { url } }, url: null };
}

async function send() {
  // All is taken before any wait: what is typed, chosen or clicked meanwhile belongs to the next message.
  const written = text.value;
  const chosen = file.files[0];
  const spoken = document.getElementById("chat-spoken").checked;
  if (!chosen && !written.trim()) return;
  text.value = file.value = "";
  aborter = new AbortController();
  stop.disabled = false;
  say(state, "waiting for the answer …");
  const mine = row("user", "You", written || chosen.name);
  const theirs = row("model", "Model");
  const before = messages.length;
  let words = "";
  try {
    if (spoken) player ??= new Player(new AudioContext({ sampleRate: RATE })); // a browser lets a click make sound, not a timer
    const content = written ? [{ type: "text", text: written }] : [];
    if (chosen) {
      const { part, url } = await attached(chosen);
      content.unshift(part);
      if (url) mine.append(Object.assign(new Image(), { src: url, alt: chosen.name }));
    }
    messages.push({ role: "user", content });
    const body = { model: await servedModel(), messages, stream: true, modalities: spoken ? ["text", "audio"] : ["text"] };
    if (spoken) body.audio = { format: "pcm16" };
    const answer = await ask("v1/chat/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
      signal: aborter.signal,
    });
    for await (const event of events(answer)) {
      if (event.error) throw new Error(event.error.message);
      const delta = event.choices?.[0]?.delta ?? {};
      words += delta.content ?? delta.audio?.transcript ?? "";
      theirs.lastChild.textContent = words;
      if (delta.audio?.data) player.add("chat", fromBase64(delta.audio.data));
    }
    say(state, "");
    messages.push({ role: "assistant", content: words });
  } catch (error) {
    messages.length = before;
    theirs.classList.add("cut");
    say(state, error.name === "AbortError" ? "stopped" : error.message, error.name !== "AbortError");
  } finally {
    stop.disabled = true;
    aborter = null;
  }
}

export function setUpChat() {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!aborter) send();
  });
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  stop.addEventListener("click", () => {
    aborter?.abort();
    player?.cut();
  });
}
