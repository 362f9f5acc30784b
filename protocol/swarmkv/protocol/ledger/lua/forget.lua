-- Snapshots left the store: prefixes that they served are prefilled again when asked for.
-- a: snapshots[]
for _, snapshot in ipairs(a.snapshots) do
  count(forget_snapshot(snapshot), 'evictions')
end
flush()
return #a.snapshots
