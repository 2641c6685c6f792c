// Questions to the sandbox, and how often they are asked.

export async function ask(what, wanted) {
  const response = await fetch(`sandbox/${what}?${new URLSearchParams(wanted)}`);
  if (!response.ok) throw new Error(`${response.status} ${response.statusText}`);
  return response.json();
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
