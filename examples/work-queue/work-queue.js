import { NsqError, subscribe } from "/nsq.js";

const query = new URLSearchParams(location.search);
const topic = query.get("topic") ?? "jobs";
const channel = query.get("channel") ?? "desk";
const mine = new Map(); // from a job to its element
let isWanted = false;

/** @returns {any} */
const at = (id) => document.getElementById(id);
const notify = (text) => (at("note").textContent = text);

// Only in memory: no script of another page can read it, and a reload asks again.
let token = "";

/** Return the user's token. If the gateway wants one and refuses this one, let the user type another. */
async function secret() {
  for (;;) {
    const headers = token ? { Authorization: `Bearer ${token}` } : undefined;
    const answer = await fetch("/whoami", { headers });
    if (answer.ok) {
      const { identity } = await answer.json(); // null if the gateway has no access file
      at("who").textContent = identity ?? "";
      return token;
    }
    const { detail, message } = await answer.json();
    if (answer.status !== 401) throw new NsqError(message, detail);
    if (token) notify(detail);
    token = await askForToken();
  }
}

async function askForToken() {
  at("sign-in").hidden = false;
  const event = await new Promise((resolve) => (at("sign-in").onsubmit = resolve));
  event.preventDefault();
  at("sign-in").hidden = true;
  notify("");
  const typed = event.target.elements.token.value.trim();
  event.target.reset();
  return typed;
}

// No job is delivered until the user asks for one, so none waits unseen in this page.
const jobs = subscribe({ topic, channel, secret, maxInFlight: 1 });
jobs.setMaxInFlight(0);

function setWanted(wanted) {
  isWanted = wanted;
  at("take").disabled = wanted;
  notify(wanted ? "Waiting for a job" : "");
  jobs.setMaxInFlight(wanted ? mine.size + 1 : 0);
}

function show(job) {
  const place = at("job").content.cloneNode(true).firstElementChild;
  place.querySelector("strong").textContent = job.body;
  mine.set(job, place);
  place.onclick = async ({ target: { name } }) => {
    if (!name) return;
    place.inert = true; // until the gateway responds
    const isConfirmed = await job[name]();
    place.inert = false;
    if (!isConfirmed) notify(`Not confirmed, the job may be delivered again: ${job.body}`);
    if (job.isAnswered) drop(job);
    refresh();
  };
  at("mine").append(place);
  refresh();
}

function drop(job) {
  mine.get(job)?.remove();
  mine.delete(job);
}

function refresh() {
  for (const [job, place] of mine) {
    const leftS = Math.ceil((job.deadline - Date.now()) / 1_000);
    place.querySelector("span").textContent = `${leftS} s left${job.attempts > 1 ? `, attempt ${job.attempts}` : ""}`;
    if (leftS > 0 && !job.signal.aborted) continue;
    job.requeue(); // expired; also frees its slot in the window
    drop(job);
    notify(`Expired, the job will be delivered again: ${job.body}`);
  }
}

at("take").onclick = () => setWanted(true);
at("add").onsubmit = (event) => {
  event.preventDefault();
  const { job } = event.target.elements;
  jobs.publish(topic, job.value).then(
    () => (job.value = ""),
    ({ code, message }) =>
      notify(code === "OUTCOME_UNKNOWN" ? "Outcome unknown: check before you add it again" : message),
  );
};
jobs.addEventListener("state", ({ detail }) => {
  at("state").textContent = [detail.state, detail.reason].filter(Boolean).join(": ");
});
jobs.addEventListener("error", (event) => {
  event.preventDefault();
  const isExpired = event.detail instanceof NsqError && event.detail.cmd === "REQ";
  if (!isExpired) notify(event.detail.message); // NSQ has redelivered an expired job already
});
setInterval(refresh, 1_000);

for await (const job of jobs) {
  if (isWanted) {
    show(job);
    setWanted(false);
  } else job.requeue(); // in transit when the window was set to 0
}
