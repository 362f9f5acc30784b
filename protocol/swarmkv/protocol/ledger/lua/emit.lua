-- Appends events to the streams of runs that still exist. a: entries[{run, packed list of events}]
local written = 0
for _, entry in ipairs(a.entries) do
  if redis.call('EXISTS', K.run(entry[1])) == 1 then
    write_events(entry[1], entry[2])
    written = written + 1
  end
end
return written
