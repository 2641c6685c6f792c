// What the service warns about, in words: an event that it accepts, and what it doesn't do.

import { outside } from "./text.js";

const WORDS = {
  cannot_merge_already_identified: (details, person) => [
    person(details.sourcePersonDistinctId, details.otherPersonId),
    " was not merged into ",
    person(details.targetPersonDistinctId, details.personId),
    ": its person is identified already. Both persons stay.",
  ],
  cannot_merge_with_illegal_distinct_id: (details) => [id(details.illegalDistinctId), " and ", id(details.otherDistinctId), " were not merged: ", id(details.illegalDistinctId), " is an id that is never merged."],
  invalid_event_when_process_person_profile_is_false: (details) => [id(details.event), " with $process_person_profile false: the service drops it. Here it is kept, without any effect."],
  invalid_process_person_profile: (details) => ["$process_person_profile is ", id(details.$process_person_profile), ", neither true nor false. It counts as true."],
  invalid_group_set: (details) => ["$group_set is not an object. The group ", id(`${details.groupType}: ${details.groupKey}`), " stays as it was."],
};
export const OF_MERGES = ["cannot_merge_already_identified", "cannot_merge_with_illegal_distinct_id"];

// A warning as a list of texts and elements. `person` makes an element of a distinct id and the id of its person.
export function said({ type, details }, person = id) {
  return Object.hasOwn(WORDS, type) ? WORDS[type](details, person) : [outside(JSON.stringify(details), 1000)];
}

function id(value) {
  return outside(typeof value === "string" ? value : (JSON.stringify(value) ?? ""), 120, "strong");
}
