"use strict";
const SIDE = 32, SHIFTS = SIDE * SIDE;
const PHOTO = settings.photos.side, VIEW = 48, STRIP = 96; // pixels of a photograph and of the camera's view; frames shown
// one colour for each class, told apart by colour-blind readers too
const COLOURS = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee7733", "#009988", "#8e6bbf", "#a6761d"];
const $ = id => document.getElementById(id);

// ---- bytes that the page holds

async function unpacked(encoded) {
  const bytes = Uint8Array.fromBase64?.(encoded) ?? Uint8Array.from(atob(encoded), letter => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// the parts of a script that is in the page, or comes from the folder beside it when it is asked for
async function partsOf(name) {
  if (!self.held?.[name]) await new Promise((resolve, reject) => {
    const script = Object.assign(document.createElement("script"), { src: `data/${name}.js`, onload: resolve });
    script.onerror = () => reject(new Error(`data/${name}.js cannot be read`));
    document.head.append(script);
  });
  const parts = Object.entries(self.held[name]).map(async ([key, encoded]) => [key, await unpacked(encoded)]);
  return Object.fromEntries(await Promise.all(parts));
}

// ---- one network: a worker, and a column that shows what it answers

class Network {
  constructor(column) {
    this.column = column;
    column.append($("column").content.cloneNode(true));
    this.bars = settings.classes.map((label, at) => {
      const item = document.createElement("li");
      item.innerHTML = `<span>${label}</span><div><i style="background:${COLOURS[at]}"></i></div><b></b>`;
      this.find(".bars").append(item);
      return item;
    });
    this.map = this.find(".map canvas").getContext("2d");
    this.strip = this.find(".strip").getContext("2d");
    this.find(".map").addEventListener("pointerdown", event => {
      const box = this.find(".map").getBoundingClientRect();
      const cell = (at, start, length) => Math.floor((at - start) / length * SIDE) - SIDE / 2;
      moveTo(cell(event.clientY, box.top, box.height), cell(event.clientX, box.left, box.width));
    });
    this.worker = new Worker(URL.createObjectURL(new Blob([$("worker").textContent], { type: "text/javascript" })));
    this.waiting = new Map();
    this.worker.onmessage = ({ data: { id, value, error } }) => {
      const { resolve, reject } = this.waiting.get(id);
      this.waiting.delete(id);
      error ? reject(new Error(error)) : resolve(value);
    };
  }

  find(selector) { return this.column.querySelector(selector); }

  ask(action, content = {}) {
    const id = this.asked = (this.asked ?? 0) + 1;
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { resolve, reject });
      this.worker.postMessage({ action, id, ...content });
    });
  }

  async load(name) {
    const kind = name.startsWith("a_") ? "Adaptive" : "Ordinary";
    this.find("h2").innerHTML = `${kind} <small>${name}</small>`;
    await this.ask("load", await partsOf(name));
  }

  begin(pixels) {
    this.first = this.last = null;
    this.changes = this.largest = 0;
    this.patterns = new Set();
    this.answers = new Map();
    this.map.clearRect(0, 0, SIDE, SIDE);
    this.strip.clearRect(0, 0, STRIP, 1);
    return this.ask("show", { pixels, side: mode.side, mean: settings.mean, std: settings.std });
  }

  take(logits, dy, dx, moved) {
    const answer = logits.indexOf(Math.max(...logits));
    this.first ??= logits;
    this.largest = logits.reduce((most, value, at) => Math.max(most, Math.abs(value - this.first[at])), this.largest);
    this.patterns.add(new Uint32Array(logits.buffer).join());
    this.map.fillStyle = this.strip.fillStyle = COLOURS[answer];
    if (mode === CIRCLE) {
      this.answers.set(dy * SIDE + dx, answer);
      this.map.fillRect((dx + SIDE / 2) % SIDE, (dy + SIDE / 2) % SIDE, 1, 1);
    } else {
      if (this.answers.size >= STRIP) {
        this.strip.globalCompositeOperation = "copy";
        this.strip.drawImage(this.strip.canvas, -1, 0);
        this.strip.globalCompositeOperation = "source-over";
      }
      this.strip.fillRect(Math.min(this.answers.size, STRIP - 1), 0, 1, 1);
      this.answers.set(this.answers.size, answer);
    }
    if (moved) {
      if (this.last !== null && this.last !== answer) this.changes++;
      this.last = answer;
      this.logits = logits;
      this.showAnswer(answer);
    }
    this.showCounts();
  }

  showAnswer(answer) {
    const peak = this.logits[answer], parts = Array.from(this.logits, value => Math.exp(value - peak));
    const sum = parts.reduce((a, b) => a + b);
    const verdict = image.label === null ? "" : answer === image.label ? "right" : "wrong";
    this.find(".answer").innerHTML = `${settings.classes[answer]} <small class="soft">${verdict}</small>`;
    this.bars.forEach((item, at) => {
      item.classList.toggle("top", at === answer);
      item.querySelector("i").style.width = `${100 * parts[at] / sum}%`;
      item.querySelector("b").textContent = `${Math.round(100 * parts[at] / sum)} %`;
    });
    this.find(".fingerprint").textContent = fingerprint(this.logits);
  }

  showCounts() {
    const put = (selector, text, good) => {
      this.find(selector).textContent = text;
      this.find(selector).classList.toggle("good", good);
      this.find(selector).classList.toggle("bad", !good);
    };
    put(".changes", `${this.changes} in ${moves} ${moves === 1 ? "move" : "moves"}`, this.changes === 0);
    put(".largest", this.largest === 0 ? "exactly 0" : this.largest.toPrecision(3), this.largest === 0);
    put(".patterns", this.patterns.size, this.patterns.size === 1);
    const seen = this.answers.size, frames = seen > STRIP ? `${seen} frames, the last ${STRIP} below` : `${seen} frames`;
    this.find(".mapped").textContent = mode === CIRCLE ? `Answers at ${seen} of all ${SHIFTS} shifts` : `Answers to ${frames}`;
    const counts = new Map();
    for (const answer of this.answers.values()) counts.set(answer, (counts.get(answer) ?? 0) + 1);
    this.find(".legend").innerHTML = [...counts].sort((a, b) => b[1] - a[1]).map(([answer, count]) =>
      `<li><i style="background:${COLOURS[answer]}"></i>${settings.classes[answer]} ${count}</li>`).join("");
  }
}

// FNV-1a of the bytes
function fingerprint(logits) {
  let hash = 0x811c9dc5;
  for (const byte of new Uint8Array(logits.buffer)) hash = Math.imul(hash ^ byte, 0x01000193) >>> 0;
  return hash.toString(16).padStart(8, "0");
}

// ---- two ways to move: an image around the circle, and a camera over a photograph

const CIRCLE = {
  name: "circle", side: SIDE, stage: $("stage"), shelf: $("shelf"), start: { dy: 0, dx: 0 }, image: null,
  hint: "Drag the image, or use the arrow keys.",
  within: value => ((value % SIDE) + SIDE) % SIDE,
  rest: () => allShifts(),
};
const CAMERA = {
  name: "camera", side: PHOTO, stage: $("photo"), shelf: $("photos"), image: null,
  start: { dy: (PHOTO - VIEW) / 2, dx: (PHOTO - VIEW) / 2 },
  hint: "Drag the camera, use arrow keys, or press Play.",
  within: value => Math.max(0, Math.min(PHOTO - VIEW, value)),
  rest: () => [],
};
let mode = CIRCLE;

// ---- both networks in step: the next shift is looked at when both have answered the one before

const networks = ["ordinary", "adaptive"].map(id => new Network($(id)));
let image = null, at = { dy: 0, dx: 0 }, wanted = null, rest = [], moves = 0, round = 0, working = false, ready = false;

async function work() {
  if (working || !ready) return;
  working = true;
  while (wanted || rest.length) {
    const mine = round, moved = wanted !== null, shift = wanted ?? rest.shift();
    wanted = null;
    const content = { ...shift, view: VIEW, steady: $("steady").checked };
    const answers = await Promise.all(networks.map(network => network.ask(mode.name, content)));
    if (mine !== round) continue; // another image meanwhile
    if (moved && networks[0].last !== null) moves++;
    networks.forEach((network, which) => network.take(answers[which].logits, shift.dy, shift.dx, moved));
    if (mode === CAMERA) frame("crop", answers[0].crop, SIDE);
    if (playing && mode === CAMERA && !wanted) setTimeout(step, PAUSE);
  }
  working = false;
}

// all shifts, coarse to fine, so that the map can be read early
function allShifts() {
  const found = [];
  for (const step of [8, 4, 2, 1])
    for (let dy = 0; dy < SIDE; dy += step)
      for (let dx = 0; dx < SIDE; dx += step)
        if (step === 8 || dy % (2 * step) || dx % (2 * step)) found.push({ dy, dx });
  return found;
}

function choose(pixels, label, name) {
  image = mode.image = { pixels, label, name };
  for (const button of mode.shelf.children) {
    button.setAttribute("aria-pressed", button.title === name);
    if (button.title === name) button.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
  begin();
}

function begin() {
  round++;
  moves = 0;
  at = wanted = mode.start;
  rest = mode.rest();
  draw();
  if (!ready) return;
  networks.forEach(network => network.begin(image.pixels));
  run(work());
}

function moveTo(dy, dx) {
  if (mode.within(dy) === at.dy && mode.within(dx) === at.dx) return;
  at = wanted = { dy: mode.within(dy), dx: mode.within(dx) };
  draw();
  run(work());
}

function draw() {
  if (mode === CAMERA) {
    paint(mode.stage, image.pixels, { dy: 0, dx: 0 });
    frame("view", at, VIEW);
    $("where").textContent = `${image.name}, camera at ${at.dx} right and ${at.dy} down`;
    return;
  }
  paint(mode.stage, image.pixels, at);
  const way = (value, there, back) => value > SIDE / 2 ? `${SIDE - value} ${back}` : `${value} ${there}`;
  const truth = image.label === null ? image.name : settings.classes[image.label];
  $("where").textContent = `${truth}, moved ${way(at.dx, "right", "left")} and ${way(at.dy, "down", "up")}`;
  for (const marker of document.querySelectorAll(".marker")) {
    marker.style.left = `${100 / SIDE * ((at.dx + SIDE / 2) % SIDE)}%`;
    marker.style.top = `${100 / SIDE * ((at.dy + SIDE / 2) % SIDE)}%`;
  }
}

// a box over the photograph
function frame(id, { dy, dx }, side) {
  const percent = length => `${100 * length / PHOTO}%`;
  Object.assign($(id).style, { top: percent(dy), left: percent(dx), width: percent(side), height: percent(side) });
}

function paint(canvas, pixels, { dy, dx }) {
  const side = canvas.width, drawn = new ImageData(side, side);
  for (let y = 0; y < side; y++) for (let x = 0; x < side; x++) {
    const from = 3 * (((y - dy + side) % side) * side + (x - dx + side) % side);
    drawn.data.set([...pixels.subarray(from, from + 3), 255], 4 * (y * side + x));
  }
  canvas.getContext("2d").putImageData(drawn, 0, 0);
}

// ---- what the visitor does

let grip = null, playing = false, way = { dy: 1, dx: 1 };
const PAUSE = 60; // ms between frames
for (const { stage, side } of [CIRCLE, CAMERA]) {
  stage.addEventListener("pointerdown", event => {
    play(false);
    stage.setPointerCapture(event.pointerId);
    stage.classList.add("held");
    grip = { x: event.clientX, y: event.clientY, ...at };
  });
  stage.addEventListener("pointermove", event => {
    if (!grip) return;
    const pixels = distance => Math.round(distance * side / stage.clientWidth);
    moveTo(grip.dy + pixels(event.clientY - grip.y), grip.dx + pixels(event.clientX - grip.x));
  });
  for (const end of ["pointerup", "pointercancel"]) stage.addEventListener(end, () => { grip = null; stage.classList.remove("held"); });
  stage.addEventListener("keydown", event => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step) return;
    event.preventDefault(); // no scrolling
    play(false);
    moveTo(at.dy + step[0], at.dx + step[1]);
  });
}

// the camera goes by itself: one pixel a frame, and down or up at every eighth, back at the border
function step() {
  if (!playing || mode !== CAMERA) return;
  const end = PHOTO - VIEW;
  if (at.dx + way.dx < 0 || at.dx + way.dx > end) way.dx *= -1;
  if (at.dy + way.dy < 0 || at.dy + way.dy > end) way.dy *= -1;
  moveTo(at.dy + (moves % 8 === 7 ? way.dy : 0), at.dx + way.dx);
}

function play(on) {
  const begins = on && !playing;
  playing = on;
  $("play").textContent = on ? "Stop" : "Play";
  if (begins) step();
}

function openTab(tab) {
  play(false);
  mode = tab;
  for (const each of [CIRCLE, CAMERA]) {
    $(`tab-${each.name}`).setAttribute("aria-selected", each === mode);
    $(`tab-${each.name}`).tabIndex = each === mode ? 0 : -1;
    for (const part of document.querySelectorAll(`[data-tab=${each.name}]`)) part.hidden = each !== mode;
  }
  $("board").setAttribute("aria-labelledby", `tab-${mode.name}`);
  if (ready) say(mode.hint);
  if (mode.image === null) mode.shelf.children[settings.opens[mode.name]].click();
  else { image = mode.image; begin(); }
}
for (const tab of [CIRCLE, CAMERA]) {
  $(`tab-${tab.name}`).addEventListener("click", () => openTab(tab));
  $(`tab-${tab.name}`).addEventListener("keydown", event => {
    if (!["ArrowLeft", "ArrowRight"].includes(event.key)) return;
    openTab(tab === CIRCLE ? CAMERA : CIRCLE);
    $(`tab-${mode.name}`).focus();
  });
}
$("play").addEventListener("click", () => play(!playing));
$("steady").addEventListener("change", () => { play(false); begin(); });

$("file").addEventListener("change", async ({ target }) => {
  const [file] = target.files;
  if (!file) return;
  try {
    const whole = await createImageBitmap(file), side = Math.min(whole.width, whole.height);
    const { side: wanted } = mode, size = { resizeWidth: wanted, resizeHeight: wanted, resizeQuality: "high" };
    const corner = length => Math.floor((length - side) / 2);
    const small = await createImageBitmap(whole, corner(whole.width), corner(whole.height), side, side, size);
    const canvas = Object.assign(document.createElement("canvas"), { width: wanted, height: wanted }).getContext("2d");
    canvas.fillStyle = "white"; // behind what is transparent
    canvas.fillRect(0, 0, wanted, wanted);
    canvas.drawImage(small, 0, 0);
    const { data } = canvas.getImageData(0, 0, wanted, wanted);
    choose(Uint8Array.from({ length: 3 * wanted ** 2 }, (_, k) => data[4 * Math.floor(k / 3) + k % 3]), null, "your image");
    say(`Cropped to a square and resized to ${wanted} x ${wanted} pixels.`);
  } catch {
    say(`${file.name} cannot be read as an image: try a JPEG, PNG or WebP file.`, true);
  }
  target.value = ""; // the same file may be chosen again
});
$("family").addEventListener("change", ({ target }) => run(load(target.value)));
$("show-notices").addEventListener("click", async () => {
  $("notices").textContent = new TextDecoder().decode((await partsOf("runtime")).notices);
  $("notices").hidden = false;
});

// ---- start

function say(text, bad = false) {
  $("state").textContent = text;
  $("state").classList.toggle("bad", bad);
}

function run(promise) {
  promise.catch(error => say(`The networks cannot run here (${error.message}): try another browser, or write the page again.`, true));
}

async function load(family) {
  ready = false;
  round++;
  wanted = null;
  rest = [];
  $("family").disabled = true;
  say("Loading the networks …");
  await Promise.all(networks.map((network, which) => network.load(settings.families[family][which])));
  $("family").disabled = false;
  ready = true;
  say(mode.hint);
  begin();
}

async function fill({ shelf, side }, packed, names, labels) {
  const pixels = await unpacked(packed), length = 3 * side * side;
  names.forEach((name, which) => {
    const button = Object.assign(document.createElement("button"), { type: "button", title: name });
    const canvas = Object.assign(document.createElement("canvas"), { width: side, height: side });
    const own = pixels.subarray(length * which, length * (which + 1));
    paint(canvas, own, { dy: 0, dx: 0 });
    button.append(canvas);
    button.addEventListener("click", () => { play(false); choose(own, labels[which], name); });
    shelf.append(button);
  });
}

async function start() {
  await fill(CIRCLE, settings.pixels, settings.names, settings.labels);
  await fill(CAMERA, settings.photos.pixels, settings.photos.names, settings.photos.names.map(() => null));
  openTab(CIRCLE);
  const families = Object.keys(settings.families);
  $("families").hidden = families.length === 1;
  $("family").append(...families.map(family => new Option(settings.families[family][0], family, false, family === settings.family)));
  const { module, wasm } = await partsOf("runtime");
  await Promise.all(networks.map(network => network.ask("start", { module, wasm })));
  await load(settings.family);
}

run(start());
