// Sound in and out at 24 kHz: the microphone, a player on a running time line, and pictures of both.

import { base } from "./server.js";

export const RATE = 24000;

/** Open the microphone and call `heard` with Float32Array blocks. Returns what closes it and its analyser. */
export async function openMicrophone(context, heard) {
  const stream = await navigator.mediaDevices.getUserMedia({
    audio: { channelCount: 1, echoCancellation: true, noiseSuppression: true, autoGainControl: true },
  });
  const stop = () => {
    for (const track of stream.getTracks()) track.stop();
  };
  try {
    await context.audioWorklet.addModule(new URL("ui/microphone.js", base));
    const source = context.createMediaStreamSource(stream);
    const analyser = new AnalyserNode(context, { fftSize: 2048 });
    const worklet = new AudioWorkletNode(context, "microphone", { numberOfOutputs: 0 });
    worklet.port.onmessage = ({ data }) => heard(data);
    source.connect(analyser);
    source.connect(worklet);
    return {
      analyser,
      close() {
        worklet.port.onmessage = null;
        source.disconnect();
        stop();
      },
    };
  } catch (error) {
    stop(); // the context may have been closed meanwhile; the browser would go on to listen
    throw error;
  }
}

/** Plays pieces of sound one after the other, and knows how much of each item was heard. */
export class Player {
  constructor(context) {
    this.context = context;
    this.analyser = new AnalyserNode(context, { fftSize: 2048 });
    this.analyser.connect(context.destination);
    this.sources = new Set();
    this.item = null;
    this.end = 0;
  }

  /** Add PCM16 bytes of an item behind what is already there. */
  add(item, bytes) {
    const samples = new Int16Array(bytes.buffer, bytes.byteOffset, bytes.byteLength >> 1);
    if (!samples.length) return;
    const buffer = this.context.createBuffer(1, samples.length, RATE);
    const channel = buffer.getChannelData(0);
    for (let index = 0; index < samples.length; index++) channel[index] = samples[index] / 32768;
    const source = new AudioBufferSourceNode(this.context, { buffer });
    source.connect(this.analyser);
    const begin = Math.max(this.end, this.context.currentTime + 0.02);
    if (this.item?.id !== item) this.item = { id: item, begin, seconds: 0 };
    source.start(begin);
    source.onended = () => this.sources.delete(source);
    this.sources.add(source);
    this.item.seconds += buffer.duration;
    this.end = begin + buffer.duration;
  }

  get playing() {
    return this.end > this.context.currentTime;
  }

  /** Stop at once; returns the item that was cut and how many milliseconds of it were heard, or null. */
  cut() {
    if (!this.playing || !this.item) return null;
    for (const source of this.sources) {
      source.onended = null;
      source.stop();
    }
    this.sources.clear();
    const heard = Math.max(0, Math.min(this.context.currentTime - this.item.begin, this.item.seconds));
    const found = { id: this.item.id, ms: Math.floor(heard * 1000) };
    this.end = 0;
    this.item = null;
    return found;
  }
}

/** Draw what an analyser hears, and its level, until `stop` is called. */
export function draw(canvas, meter, analyser) {
  const pen = canvas.getContext("2d");
  const samples = new Float32Array(analyser.fftSize);
  let frame = 0;
  const paint = () => {
    analyser.getFloatTimeDomainData(samples);
    const { width, height } = canvas;
    pen.clearRect(0, 0, width, height);
    pen.strokeStyle = getComputedStyle(canvas).color;
    pen.lineWidth = 2;
    pen.beginPath();
    let loudest = 0;
    for (let x = 0; x < width; x++) {
      const value = samples[Math.floor((x * samples.length) / width)];
      loudest = Math.max(loudest, Math.abs(value));
      pen.lineTo(x, height / 2 - value * height * 0.48);
    }
    pen.stroke();
    meter.value = loudest;
    frame = requestAnimationFrame(paint);
  };
  paint();
  return () => {
    cancelAnimationFrame(frame);
    meter.value = 0;
  };
}

export function toPcm16(block) {
  const pcm = new Int16Array(block.length);
  for (let index = 0; index < block.length; index++) pcm[index] = Math.max(-1, Math.min(1, block[index])) * 32767;
  return new Uint8Array(pcm.buffer);
}
