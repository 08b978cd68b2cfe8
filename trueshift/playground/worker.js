// One network in one worker. All bytes arrive by message, and messages are answered one after the other.
const SIDE = 32, PLANE = SIDE * SIDE;
let ort, session, input, planes;

const actions = {
  async start({ module, wasm }) {
    ort = await import(URL.createObjectURL(new Blob([module], { type: "text/javascript" })));
    Object.assign(ort.env.wasm, { wasmBinary: wasm, numThreads: 1 });
    input = new ort.Tensor("float32", new Float32Array(3 * PLANE), [1, 3, SIDE, SIDE]);
  },

  async load({ graph, weights }) {
    await session?.release();
    const externalData = [{ path: "weights", data: weights }];
    session = await ort.InferenceSession.create(graph, { executionProviders: ["wasm"], externalData });
  },

  // pixels [32, 32, 3] become planes [3, 32, 32], normalised in float32 as PyTorch does it
  show({ pixels, mean, std }) {
    const f = Math.fround;
    planes = Float32Array.from({ length: 3 * PLANE }, (_, at) => {
      const channel = Math.floor(at / PLANE), value = pixels[3 * (at % PLANE) + channel];
      return f(f(f(value / 255) - f(mean[channel])) / f(std[channel]));
    });
  },

  // the image moved circularly by dy down and dx to the right, both from 0 to 31
  async look({ dy, dx }) {
    for (let row = 0; row < 3 * SIDE; row++) {
      const y = row % SIDE, from = (row - y + (y - dy + SIDE) % SIDE) * SIDE, line = planes.subarray(from, from + SIDE);
      input.data.set(line.subarray(SIDE - dx), row * SIDE);
      input.data.set(line.subarray(0, SIDE - dx), row * SIDE + dx);
    }
    const { logits } = await session.run({ image: input });
    return Float32Array.from(logits.data);
  },
};

let last = Promise.resolve();
self.onmessage = ({ data }) => {
  last = last.then(() => actions[data.action](data)).then(
    value => self.postMessage({ id: data.id, value }),
    error => self.postMessage({ id: data.id, error: String(error) }),
  );
};
