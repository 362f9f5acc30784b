-- A snapshot is about to be removed by hand: it is forgotten, unless runs that have not ended need it and `force` is
-- false. Returns 1 when it is forgotten, 0 when it is needed.
-- a: snapshot, force
if not a.force then
  for _, snapshot in ipairs(needed_snapshots()) do
    if snapshot == a.snapshot then return 0 end
  end
end
forget_snapshot(a.snapshot)
return 1
