// What every tab needs of the server: the key, requests, and errors in words.

const keyField = document.getElementById("key");
keyField.value = sessionStorage.getItem("omni-key") ?? "";
keyField.addEventListener("change", () => sessionStorage.setItem("omni-key", keyField.value));

export const base = new URL("./", location.href);

export function key() {
  return keyField.value.trim();
}

export function headers(more = {}) {
  return key() ? { Authorization: `Bearer ${key()}`, ...more } : more;
}

/** Ask the server; a refusal becomes an Error with the server's own sentence. */
export async function ask(path, options = {}) {
  const answer = await fetch(new URL(path, base), { ...options, headers: headers(options.headers) });
  if (!answer.ok) {
    const body = await answer.json().catch(() => null);
    throw new Error(body?.error?.message ?? `${answer.status} ${answer.statusText}`);
  }
  return answer;
}

let question = null;

/**
 * Return the id of the model that is served. Tabs may be used before the server has answered, so they wait here for it;
 * it is asked `anew` when the key changes, and by the next caller when it could not be told.
 */
export function servedModel(anew = false) {
  if (anew || !question) {
    const asked = ask("v1/models").then(async (answer) => (await answer.json()).data[0].id);
    question = asked;
    asked.catch(() => {
      if (question === asked) question = null;
    });
  }
  return question;
}

/** Yield the events of a stream of server-sent events as objects. */
export async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const blocks = rest.split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const data = block.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
      if (data && data !== "[DONE]") yield JSON.parse(data);
    }
  }
}

export function say(element, text, bad = false) {
  element.textContent = text;
  element.classList.toggle("bad", bad);
}

export function toBase64(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += 0x8000) text += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  return btoa(text);
}

export function fromBase64(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}
