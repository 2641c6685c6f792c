// Questions to the sandbox, and how often they are asked; changes of what it holds.

export async function ask(what, wanted = {}) {
  return answered(await fetch(`sandbox/${what}?${new URLSearchParams(wanted)}`));
}

// Change something. `null` if the answer has no body. An error's message is for people: what happened, and where.
export async function change(method, what, body) {
  const content = body === undefined ? {} : { headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  return answered(await fetch(`sandbox/${what}`, { method, ...content }));
}

async function answered(response) {
  const text = await response.text();
  if (!response.ok) throw new Refusal(response.status, text);
  return text ? JSON.parse(text) : null;
}

// What the sandbox refuses, in its own words.
class Refusal extends Error {
  constructor(status, text) {
    super(Refusal.words(text) || `The sandbox answered with status ${status}.`);
  }

  static words(text) {
    try {
      const { detail, error, attr } = JSON.parse(text);
      const words = [detail, error].find((each) => typeof each === "string" && each) ?? "";
      return words && attr ? `${attr}: ${words}` : words;
    } catch {
      return text.length < 1000 && !text.startsWith("<") ? text.trim() : "";
    }
  }
}

// Why something failed, for people.
export function reason(error) {
  return error instanceof Refusal ? error.message : "The sandbox doesn't answer. Check that it is running, then try again.";
}

// `act`, but not more often than every `gap` milliseconds: at once, or as soon as may be.
export function sparingly(act, gap) {
  let [timer, last] = [0, -Infinity];
  return () => {
    timer ||= setTimeout(() => {
      [timer, last] = [0, Date.now()];
      act();
    }, Math.max(0, last + gap - Date.now()));
  };
}
