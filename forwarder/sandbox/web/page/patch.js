// What is shown, brought to what it should be: only what differs is changed, so nothing flashes, scrolls back, or loses what was typed.

// Make the children of `parent` those of `wanted`. A child that equals a wanted one stays. One with the same `data-key` stays too, and its
// own children are compared; with `data-own` it is left as it is, whatever was typed or shown in it.
export function patch(parent, wanted) {
  const there = [...parent.childNodes];
  let place = 0;
  for (const node of wanted) {
    const found = there.findIndex((each, index) => index >= place && same(each, node));
    if (found < 0) {
      parent.insertBefore(node, there[place] ?? null);
      continue;
    }
    while (place < found) there[place++].remove();
    bring(there[place++], node);
  }
  while (place < there.length) there[place++].remove();
}

function same(one, other) {
  const [key, wanted] = [one.dataset?.key, other.dataset?.key];
  if (key !== undefined || wanted !== undefined) return key === wanted && one.tagName === other.tagName;
  return one.isEqualNode(other);
}

function bring(one, other) {
  if (one.dataset?.own !== undefined || one.isEqualNode(other)) return;
  for (const { name } of [...one.attributes]) if (!other.hasAttribute(name)) one.removeAttribute(name);
  for (const { name, value } of other.attributes) if (one.getAttribute(name) !== value) one.setAttribute(name, value);
  patch(one, [...other.childNodes]);
}
