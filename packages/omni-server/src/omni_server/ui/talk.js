// The Talk tab: a realtime session over a WebSocket, microphone in and voice out.

import { base, fromBase64, key, say, servedModel, toBase64 } from "./server.js";
import { draw, openMicrophone, Player, RATE, toPcm16 } from "./sound.js";

const TRIES = 5;
const view = Object.fromEntries(
  ["connect", "mute", "interrupt", "state", "transcript", "instructions", "talk-voice", "wave-in", "wave-out", "level-in", "level-out"]
    .map((id) => [id, document.getElementById(id)]),
);
let talk = null;

class Talk {
  constructor() {
    this.muted = false;
    this.tries = 0;
    this.closed = false;
    this.rows = new Map();
    this.answering = null;
  }

  async begin() {
    this.context = new AudioContext({ sampleRate: RATE }); // before any wait: a browser lets a click make sound, not a timer
    this.player = new Player(this.context);
    say(view.state, "asking the server …");
    this.model = await servedModel();
    if (this.closed) return; // "Disconnect" came before the answer
    say(view.state, "asking for the microphone …");
    this.microphone = await openMicrophone(this.context, (block) => this.hear(block)).catch((error) => {
      throw new Error(`the microphone cannot be used: ${error.message}`);
    });
    if (this.closed) {
      this.microphone.close(); // "Disconnect" came while the browser asked for the microphone
      return;
    }
    this.stopDrawing = [
      draw(view["wave-in"], view["level-in"], this.microphone.analyser),
      draw(view["wave-out"], view["level-out"], this.player.analyser),
    ];
    this.connect();
  }

  connect() {
    const url = new URL("v1/realtime", base);
    url.protocol = url.protocol.replace("http", "ws");
    url.searchParams.set("model", this.model);
    const protocols = ["realtime", ...(key() ? [`openai-insecure-api-key.${key()}`] : [])];
    this.refusal = "";
    this.ready = false;
    this.socket = new WebSocket(url, protocols);
    this.socket.onmessage = ({ data }) => this.take(JSON.parse(data));
    this.socket.onclose = (event) => this.lost(event);
  }

  send(type, fields = {}) {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify({ type, ...fields }));
  }

  hear(block) {
    if (this.ready && !this.muted) this.send("input_audio_buffer.append", { audio: toBase64(toPcm16(block)) });
  }

  take(event) {
    const handle = this.handlers[event.type];
    if (handle) handle.call(this, event);
  }

  handlers = {
    "session.created"() {
      this.tries = 0;
      this.ready = true;
      const session = { type: "realtime" };
      if (view.instructions.value) session.instructions = view.instructions.value;
      if (view["talk-voice"].value) session.audio = { output: { voice: view["talk-voice"].value } };
      if (Object.keys(session).length > 1) this.send("session.update", { session });
      say(view.state, "listening: speak");
    },
    error({ error }) {
      this.refusal = error.message;
      say(view.state, error.message, true);
    },
    "input_audio_buffer.speech_started"({ item_id }) {
      say(view.state, "you speak");
      this.row(item_id, "user", "You");
      this.interrupt(false);
    },
    "input_audio_buffer.speech_stopped"() {
      say(view.state, "the model thinks");
    },
    "conversation.item.input_audio_transcription.completed"({ item_id, transcript }) {
      this.row(item_id, "user", "You").lastChild.textContent = transcript;
    },
    "response.created"({ response }) {
      this.answering = response.id;
    },
    "response.output_audio.delta"({ response_id, item_id, delta }) {
      if (response_id !== this.answering) return; // it was under way when the answer was interrupted
      say(view.state, "the model speaks");
      this.row(item_id, "model", "Model");
      this.player.add(item_id, fromBase64(delta));
    },
    "response.output_audio_transcript.delta"({ item_id, delta }) {
      this.row(item_id, "model", "Model").lastChild.textContent += delta;
    },
    "response.done"({ response }) {
      this.answering = null;
      if (response.status === "failed") say(view.state, response.status_details?.error?.message ?? "the answer failed", true);
      else if (!this.player.playing) say(view.state, "listening: speak");
      if (response.status === "cancelled") for (const item of response.output) this.rows.get(item.id)?.classList.add("cut");
    },
  };

  row(id, kind, name) {
    let row = this.rows.get(id);
    if (!row) {
      row = document.createElement("li");
      row.className = kind;
      const who = document.createElement("small");
      who.textContent = name;
      row.append(who, document.createTextNode(""));
      this.rows.set(id, row);
      view.transcript.append(row);
      row.scrollIntoView({ block: "nearest" });
    }
    return row;
  }

  /** Stop the model's voice, and tell the server how much of it was heard. */
  interrupt(cancel = true) {
    const cut = this.player.cut();
    if (cancel && this.answering) {
      this.send("response.cancel");
      this.answering = null;
    }
    if (cut) {
      this.send("conversation.item.truncate", { item_id: cut.id, content_index: 0, audio_end_ms: cut.ms });
      this.rows.get(cut.id)?.classList.add("cut");
    }
  }

  mute() {
    this.muted = !this.muted;
    view.mute.setAttribute("aria-pressed", String(this.muted));
    say(view.state, this.muted ? "muted" : "listening: speak");
  }

  lost({ code, reason }) {
    this.ready = false;
    if (this.closed) return;
    const again = code === 1013 || code === 1012 || code === 1006;
    if (!again || this.tries >= TRIES) {
      this.end();
      say(view.state, this.refusal || reason || `the connection was closed (${code})`, true);
      return;
    }
    const seconds = 2 ** this.tries++;
    say(view.state, `${this.refusal || "the connection broke"}: trying again in ${seconds} s`, true);
    this.timer = setTimeout(() => this.connect(), seconds * 1000);
  }

  end() {
    this.closed = true;
    clearTimeout(this.timer);
    this.socket?.close();
    this.microphone?.close();
    this.player?.cut();
    for (const stop of this.stopDrawing ?? []) stop();
    this.context?.close();
    if (talk === this) talk = null;
    show();
  }
}

function show() {
  view.connect.textContent = talk ? "Disconnect" : "Connect";
  view.mute.disabled = view.interrupt.disabled = !talk;
  if (!talk) view.mute.setAttribute("aria-pressed", "false");
}

export function setUpTalk() {
  view.connect.addEventListener("click", async () => {
    if (talk) {
      talk.end();
      say(view.state, "not connected");
      return;
    }
    const begun = new Talk();
    talk = begun;
    show();
    try {
      await begun.begin();
    } catch (error) {
      if (begun.closed) return;
      begun.end();
      say(view.state, error.message, true);
    }
  });
  view.mute.addEventListener("click", () => talk?.mute());
  view.interrupt.addEventListener("click", () => talk?.interrupt());
  document.addEventListener("keydown", (event) => {
    if (!talk || event.target.matches("input, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "m") talk.mute();
    else if (event.key === "Escape") talk.interrupt();
  });
}
