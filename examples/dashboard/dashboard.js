import { subscribe } from "/nsq.js";

const LAST = 10;
const topic = new URLSearchParams(location.search).get("topic") ?? "orders";
const sums = new Map(); // by product
let last = [];
let count = 0;
let countBefore = 0;
let isDrawn = true;

/** @returns {any} */
const at = (id) => document.getElementById(id);

function take({ body }) {
  count += 1;
  last = [body, ...last].slice(0, LAST);
  try {
    const { product, amount } = JSON.parse(body);
    sums.set(product, (sums.get(product) ?? 0) + Number(amount));
  } catch {
    // Not an order: shown among the last ten, but not counted.
  }
  // Draw at most once per animation frame; a hidden page does not draw.
  if (isDrawn) requestAnimationFrame(draw);
  isDrawn = false;
}

function draw() {
  isDrawn = true;
  at("count").textContent = count;
  at("last").replaceChildren(...last.map((body) => element("li", body)));
  const all = [...sums.values()].reduce((left, right) => left + right, 0);
  const rows = [...sums].map(([product, sum]) => {
    const share = Object.assign(document.createElement("meter"), { max: all, value: sum });
    share.ariaLabel = `Share of ${product}`;
    return element("tr", element("td", product), element("td", sum.toFixed(2)), element("td", share));
  });
  at("sums").replaceChildren(...rows);
}

// append() inserts text, so that a published body is never parsed as HTML.
function element(name, ...content) {
  const made = document.createElement(name);
  made.append(...content);
  return made;
}

let since = performance.now();
setInterval(() => {
  const now = performance.now();
  at("rate").textContent = Math.round((1_000 * (count - countBefore)) / (now - since));
  [since, countBefore] = [now, count];
}, 1_000);

// Without a channel, this is a viewer: it receives all new messages and acknowledges none.
const orders = subscribe({ topic }, take);
orders.addEventListener("state", ({ detail }) => {
  at("state").textContent = [detail.state, detail.reason].filter(Boolean).join(": ");
});
