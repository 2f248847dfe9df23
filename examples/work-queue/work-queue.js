import { NsqError, subscribe } from "/nsq.js";

const asked = new URLSearchParams(location.search);
const topic = asked.get("topic") ?? "jobs";
const channel = asked.get("channel") ?? "desk";
const mine = new Map(); // job: its place on the page
let isWanted = false;

/** @returns {any} */
const at = (id) => document.getElementById(id);
const tell = (text) => (at("note").textContent = text);

// As many as are held may be on the page: none comes unless somebody wants one more.
const jobs = subscribe({ topic, channel, maxInFlight: 1 });
jobs.setMaxInFlight(0);

function want(isSo) {
  isWanted = isSo;
  at("take").disabled = isSo;
  tell(isSo ? "Waiting for a job" : "");
  jobs.setMaxInFlight(isSo ? mine.size + 1 : 0);
}

function show(job) {
  const place = at("job").content.cloneNode(true).firstElementChild;
  place.querySelector("strong").textContent = job.body;
  mine.set(job, place);
  place.onclick = ({ target: { name } }) => {
    if (name) job[name]();
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
    place.querySelector("span").textContent = `${leftS} s left${job.attempts > 1 ? `, try ${job.attempts}` : ""}`;
    if (leftS > 0 && !job.signal.aborted) continue;
    job.requeue(); // its time is up, and it makes room here
    drop(job);
    tell(`Somebody else gets it now: ${job.body}`);
  }
}

at("take").onclick = () => want(true);
at("add").onsubmit = (event) => {
  event.preventDefault();
  const { job } = event.target.elements;
  jobs.publish(topic, job.value).then(
    () => (job.value = ""),
    ({ code, message }) => tell(code === "OUTCOME_UNKNOWN" ? "Added or not: look before you add it again" : message),
  );
};
jobs.addEventListener("state", ({ detail }) => {
  at("state").textContent = [detail.state, detail.reason].filter(Boolean).join(": ");
});
jobs.addEventListener("error", (event) => {
  event.preventDefault();
  const isGone = event.detail instanceof NsqError && event.detail.cmd === "REQ";
  if (!isGone) tell(event.detail.message); // what came too late to be given back is with somebody else
});
setInterval(refresh, 1_000);

for await (const job of jobs) {
  if (isWanted) {
    show(job);
    want(false);
  } else job.requeue(); // it was on its way when the window was closed
}
