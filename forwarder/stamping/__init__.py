"""From an event's bytes to those that are delivered: validated, with the uuid, the time and the
address that it lacks. Knows neither lanes nor limits of the buffer.

`stamp.py` has the ways of requests, fastest first; `record_forms.py` reads a record of any form;
`stamp_event.py` stamps one event of any form.
"""
