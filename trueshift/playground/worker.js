// One network in one worker. All bytes arrive by message, and messages are answered one after the other.
const SIDE = 32, PLANE = SIDE * SIDE;
let ort, session, input, planes, whole, scores;

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

  // pixels [side, side, 3] become planes [3, side, side], normalised in float32 as PyTorch does it
  show({ pixels, side, mean, std }) {
    const f = Math.fround, area = side * side;
    planes = Float32Array.from({ length: 3 * area }, (_, at) => {
      const channel = Math.floor(at / area), value = pixels[3 * (at % area) + channel];
      return f(f(f(value / 255) - f(mean[channel])) / f(std[channel]));
    });
    whole = side;
    scores = side > SIDE ? spotScores() : null;
  },

  // the image moved circularly by dy down and dx to the right, both from 0 to 31
  circle({ dy, dx }) {
    for (let row = 0; row < 3 * SIDE; row++) {
      const y = row % SIDE, from = (row - y + (y - dy + SIDE) % SIDE) * SIDE, line = planes.subarray(from, from + SIDE);
      input.data.set(line.subarray(SIDE - dx), row * SIDE);
      input.data.set(line.subarray(0, SIDE - dx), row * SIDE + dx);
    }
    return answer({ dy, dx });
  },

  // what a camera sees of a larger image: the middle of its view, or the crop that the content chooses there
  camera({ dy, dx, view, steady }) {
    const room = view - SIDE, crop = { dy: dy + room / 2, dx: dx + room / 2 };
    if (steady) {
      const score = cropScore(room + 1);
      let best = null;
      for (let y = dy; y <= dy + room; y++) for (let x = dx; x <= dx + room; x++) {
        const one = { at: y * whole + x, score: score(y * whole + x) };
        if (best === null || better(one, best)) best = one;
      }
      Object.assign(crop, { dy: Math.floor(best.at / whole), dx: best.at % whole });
    }
    for (let row = 0; row < 3 * SIDE; row++) {
      const from = (Math.floor(row / SIDE) * whole + crop.dy + row % SIDE) * whole + crop.dx;
      input.data.set(planes.subarray(from, from + SIDE), row * SIDE);
    }
    return answer(crop);
  },
};

async function answer(crop) {
  const { logits } = await session.run({ image: input });
  return { logits: Float32Array.from(logits.data), crop };
}

// ---- trueshift.steady: how good the crop is that starts at each position, by its content alone (trueshift/motion.py)

const SUPPORT = 15; // pixels that a spot looks at, each way

function spotScores() {
  const area = whole * whole, strength = new Float64Array(area), found = new Float64Array(area);
  const levels = Float64Array.from(planes, value => { // half to even
    const scaled = value * 256, low = Math.floor(scaled);
    return scaled - low === 0.5 ? low + Math.abs(low % 2) : Math.round(scaled);
  });
  const blurred = (centre, n) => { // by a triangle of n pixels
    let sum = 0;
    for (let i = 1 - n; i < n; i++) for (let j = 1 - n; j < n; j++)
      sum += (n - Math.abs(i)) * (n - Math.abs(j)) * levels[centre + i * whole + j];
    return sum;
  };
  const each = (margin, visit) => {
    for (let y = margin; y < whole - margin; y++) for (let x = margin; x < whole - margin; x++) visit(y * whole + x);
  };
  each(4, at => {
    for (const plane of [0, area, 2 * area]) strength[at] += Math.abs(625 * blurred(plane + at, 3) - 81 * blurred(plane + at, 5));
  });
  each(7, at => {
    const largest = radius => {
      for (let i = -radius; i <= radius; i++) for (let j = -radius; j <= radius; j++)
        if (strength[at + i * whole + j] > strength[at]) return false;
      return true;
    };
    found[at] = 2 ** 48 * [1, 2, 3].filter(largest).length + strength[at];
  });
  return found;
}

// of a crop that can start at so many positions each way: that of the best of its spots, which are as far apart
function cropScore(starts) {
  const further = Math.floor((SIDE - SUPPORT) / starts), first = Math.floor((SIDE - further * starts) / 2), spots = [];
  for (let i = 0; i <= further; i++) for (let j = 0; j <= further; j++)
    spots.push((first + i * starts) * whole + first + j * starts);
  return at => Math.max(...spots.map(spot => scores[at + spot]));
}

// whether a crop is better than another; those that tie are compared pixel by pixel
function better(one, other) {
  if (one.score !== other.score) return one.score > other.score;
  for (let row = 0; row < 3 * SIDE; row++) for (let x = 0; x < SIDE; x++) {
    const from = (Math.floor(row / SIDE) * whole + row % SIDE) * whole + x;
    if (planes[from + one.at] !== planes[from + other.at]) return planes[from + one.at] > planes[from + other.at];
  }
  return false;
}

let last = Promise.resolve();
self.onmessage = ({ data }) => {
  last = last.then(() => actions[data.action](data)).then(
    value => self.postMessage({ id: data.id, value }),
    error => self.postMessage({ id: data.id, error: String(error) }),
  );
};
