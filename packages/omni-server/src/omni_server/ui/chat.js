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

async function attached() {
  const chosen = file.files[0];
  if (!chosen) return null;
  const data = toBase64(new Uint8Array(await chosen.arrayBuffer()));
  const url = `data:${chosen.type};base64,${data}`;
  if (chosen.type.startsWith("image/")) return { part: { type: "image_url", image_url: { url } }, url };
  return { part: { type: "audio_url", audio_url: { url } }, url: null, name: chosen.name };
}

async function send() {
  const found = await attached();
  if (!found && !text.value.trim()) return;
  const mine = row("user", "You", text.value || found?.name || "");
  if (found?.url) mine.append(Object.assign(new Image(), { src: found.url, alt: file.files[0].name }));
  const content = [...(found ? [found.part] : []), ...(text.value ? [{ type: "text", text: text.value }] : [])];
  messages.push({ role: "user", content });
  text.value = file.value = "";
  const spoken = document.getElementById("chat-spoken").checked;
  const body = { messages, stream: true, modalities: spoken ? ["text", "audio"] : ["text"] };
  if (spoken) body.audio = { format: "pcm16" };
  aborter = new AbortController();
  stop.disabled = false;
  say(state, "waiting for the answer …");
  const theirs = row("model", "Model");
  let words = "";
  try {
    body.model = await servedModel();
    const answer = await ask("v1/chat/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
      signal: aborter.signal,
    });
    if (spoken) player ??= new Player(new AudioContext({ sampleRate: RATE }));
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
    messages.pop();
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
