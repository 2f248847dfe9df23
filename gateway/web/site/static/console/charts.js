/**
 * The two charts: the activity of this page, and the queue of the selected topic or channel.
 */

import { Chart } from "./chart.js";
import { byId, setText } from "./elements.js";
import { fullName, rate, shortCount } from "./format.js";
import { Meter, Series } from "./series.js";

export class Charts {
  #arrivals = new Series();
  #answers = new Series();
  #history;
  #arrivalMeter = new Meter();
  #answerMeter = new Meter();
  #chosen = { topic: "", channel: "" };
  #page = new Chart(
    byId("page-chart", HTMLElement),
    [
      { name: "received", unit: "/s", series: this.#arrivals, part: "arrivals" },
      { name: "answered", unit: "/s", series: this.#answers, part: "answers" },
    ],
    rate,
    (agoMs) => this.#queue.follow(agoMs),
  );
  #queue = new Chart(
    byId("queue-chart", HTMLElement),
    [
      { name: "depth", unit: "", series: new Series(), part: "depth" },
      { name: "in flight", unit: "", series: new Series(), part: "in-flight" },
    ],
    shortCount,
    (agoMs) => this.#page.follow(agoMs),
  );

  /** @param {import("./series.js").QueueHistory} history */
  constructor(history) {
    this.#history = history;
  }

  /** Messages received per second, as last measured. */
  get arrivalRate() {
    return this.#arrivals.last ?? 0;
  }

  /**
   * Once a second: reads the counts and draws.
   *
   * @param {number} nowMs
   * @param {import("./connection.js").Counters} counters
   */
  tick(nowMs, counters) {
    this.#arrivals.add(nowMs, this.#arrivalMeter.read(nowMs, counters.received));
    this.#answers.add(nowMs, this.#answerMeter.read(nowMs, counters.finished + counters.requeued));
    this.#page.draw(nowMs);
    this.#queue.series = this.#history.of(this.#chosen.topic, this.#chosen.channel);
    this.#queue.draw(nowMs);
  }

  /**
   * Shows the queue of another topic or channel.
   *
   * @param {string} topic
   * @param {string} channel Empty: the topic and all its channels.
   */
  choose(topic, channel) {
    if (topic === this.#chosen.topic && channel === this.#chosen.channel) return;
    this.#chosen = { topic, channel };
    const what = channel === "" ? `${topic}, all channels` : fullName(topic, channel);
    setText(byId("queue-chart-what", HTMLElement), topic === "" ? "select a topic" : what);
    byId("queue-chart-what", HTMLElement).title = what;
  }
}
