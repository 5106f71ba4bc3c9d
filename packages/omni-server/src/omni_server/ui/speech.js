// The Text-to-speech tab.

import { ask, say } from "./server.js";

const form = document.getElementById("speech-form");
const state = document.getElementById("speech-state");
const audio = document.getElementById("speech-audio");

export async function setUpSpeech() {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = form.querySelector("button");
    button.disabled = true;
    say(state, "making speech …");
    const began = performance.now();
    try {
      const body = { input: document.getElementById("speech-text").value, response_format: "wav" };
      const voice = document.getElementById("speech-voice").value;
      const instructions = document.getElementById("speech-style").value;
      if (voice) body.voice = voice;
      if (instructions) body.instructions = instructions;
      const answer = await ask("v1/audio/speech", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify(body),
      });
      const sound = await answer.blob();
      URL.revokeObjectURL(audio.src);
      audio.src = URL.createObjectURL(sound);
      audio.hidden = false;
      say(state, `${Math.round(sound.size / 1024)} KiB in ${((performance.now() - began) / 1000).toFixed(1)} s`);
      await audio.play().catch(() => say(state, "press play"));
    } catch (error) {
      say(state, error.message, true);
    } finally {
      button.disabled = false;
    }
  });
}

/** Return the names of the voices; none for a model that does not speak a given text. */
export async function listVoices() {
  try {
    const found = await (await ask("v1/audio/voices")).json();
    return [...(found.voices ?? []), ...(found.uploaded_voices ?? [])].map((voice) => voice.name ?? voice);
  } catch {
    return [];
  }
}

export function showVoices(names) {
  const options = names.map((name) => Object.assign(document.createElement("option"), { value: name }));
  document.getElementById("voices").replaceChildren(...options);
}
