"""From bytes to the events that are delivered: validated, with the uuid, the time and the address
that they lack. Knows neither which lanes may be opened nor limits of the buffer.

`stamp.py` has the ways of requests, fastest first; `record_forms.py` reads a record of any form,
and names the lane of each event; `stamp_event.py` stamps one event of any form.
"""
