// An AudioWorklet that hands the microphone on, 40 ms at a time.

class Microphone extends AudioWorkletProcessor {
  constructor() {
    super();
    this.size = Math.round(sampleRate * 0.04);
    this.block = new Float32Array(this.size);
    this.filled = 0;
  }

  process([input]) {
    const channel = input[0];
    if (!channel) return true;
    for (const sample of channel) {
      this.block[this.filled++] = sample;
      if (this.filled === this.size) {
        this.port.postMessage(this.block.slice());
        this.filled = 0;
      }
    }
    return true;
  }
}

registerProcessor("microphone", Microphone);
