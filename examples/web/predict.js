// Open a model that `trainwright export RUN model.onnx` wrote, and predict what is typed into a form. Nothing
// is sent anywhere. The certificate beside the model says which inputs it takes.
import * as ort from "./node_modules/onnxruntime-web/dist/ort.wasm.min.mjs";

ort.env.wasm.numThreads = 1; // more need headers that `python -m http.server` does not send
const NO_TIME = -(2n ** 63n);
const MISSING = new Set(["", "na", "n/a", "nan", "null", "none", "nat", "#n/a", "<na>"]);
const BOOLEANS = { yes: 1, true: 1, y: 1, t: 1, no: 0, false: 0, n: 0, f: 0 };
const url = new URLSearchParams(location.search).get("model") ?? "model.onnx";
const [about, row, prediction, error] = ["about", "row", "prediction", "error"].map((id) =>
  document.getElementById(id),
);

try {
  const certificate = await (await fetch(`${url}.certificate.json`)).json();
  const kinds = certificate.inputs.map((input) => input.reads.raw);
  if (kinds.some((kind) => kind === "text" || kind === "array")) {
    throw new Error("this page has fields for columns and images; the model takes tokens or arrays");
  }
  const session = await ort.InferenceSession.create(url);
  about.textContent = `${certificate.artifact}: run ${certificate.run.id}, ${certificate.run.model}`;
  row.replaceChildren(...certificate.inputs.map(field), button());
  row.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      error.textContent = "";
      show(certificate, await session.run(await feeds(certificate)));
    } catch (problem) {
      prediction.replaceChildren();
      error.textContent = problem.message;
    }
  });
  row.dataset.ready = "yes";
} catch (problem) {
  error.textContent = `The model cannot be opened: ${problem.message}`;
}

function field(input) {
  const label = document.createElement("label");
  const cell = document.createElement("input");
  cell.name = input.name;
  if (input.reads.raw === "image") {
    Object.assign(cell, { type: "file", accept: "image/*", required: true });
  }
  label.append(`${input.name} (${input.content || input.dtype})`, cell);
  return label;
}

function button() {
  const made = document.createElement("button");
  made.textContent = "Predict";
  return made;
}

// The inputs of one row, as tensors (1, ...).
async function feeds(certificate) {
  const found = {};
  for (const input of certificate.inputs) {
    const cell = row.elements[input.name];
    if (input.reads.raw === "image") {
      found[input.name] = await image(cell.files[0], input);
    } else if (input.dtype === "string") {
      found[input.name] = new ort.Tensor("string", [cell.value], [1, 1]);
    } else if (input.dtype === "int64") {
      found[input.name] = new ort.Tensor("int64", BigInt64Array.of(moment(cell.value)), [1, 1]);
    } else {
      found[input.name] = new ort.Tensor("float64", Float64Array.of(number(cell.value, input.name)), [1, 1]);
    }
  }
  return found;
}

function number(text, name) {
  const word = text.trim().toLowerCase();
  const value = MISSING.has(word) ? NaN : (BOOLEANS[word] ?? Number(word));
  if (Number.isNaN(value) && !MISSING.has(word)) {
    throw new Error(`${name}: ${text} is no number`);
  }
  return value;
}

// Microseconds since 1970; a time without a zone is taken as UTC.
function moment(text) {
  if (MISSING.has(text.trim().toLowerCase())) {
    return NO_TIME;
  }
  const hasZone = /Z$|[+-]\d\d:?\d\d$/.test(text.trim());
  const milliseconds = Date.parse(text.trim() + (hasZone || !text.includes(":") ? "" : "Z"));
  if (Number.isNaN(milliseconds)) {
    throw new Error(`${text} is no time, such as 2024-02-29T12:30:00`);
  }
  return BigInt(milliseconds) * 1000n;
}

// An image, (1, height, width, channels) uint8. The browser's resizing is not exactly that of training: give
// images of the model's size where that matters.
async function image(file, input) {
  const [height, width, channels] = input.shape;
  const bitmap = await createImageBitmap(file, { colorSpaceConversion: "none", premultiplyAlpha: "none" });
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d");
  context.drawImage(bitmap, 0, 0, width, height);
  const pixels = context.getImageData(0, 0, width, height).data; // (height, width, 4)
  const data = new Uint8Array(height * width * channels);
  for (let i = 0; i < height * width; i++) {
    const [red, green, blue, alpha] = pixels.subarray(4 * i, 4 * i + 4);
    if (channels === 1) {
      data[i] = (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16; // as Pillow has it
    } else {
      data.set([red, green, blue, alpha].slice(0, channels), channels * i);
    }
  }
  return new ort.Tensor("uint8", data, [1, height, width, channels]);
}

function show(certificate, outputs) {
  const lines = [];
  for (const output of certificate.outputs) {
    const values = Array.from(outputs[output.name].data);
    const names = values.length === output.columns.length ? output.columns : values.map((_, i) => `${output.name} ${i}`);
    values.forEach((value, i) => lines.push([names[i], String(value)]));
  }
  prediction.replaceChildren(
    ...lines.map((cells) => {
      const line = document.createElement("tr");
      line.append(
        ...cells.map((text) => Object.assign(document.createElement("td"), { textContent: text })),
      );
      return line;
    }),
  );
}
