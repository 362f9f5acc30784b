-- Stores a document for a run that is about to be submitted: ARGV[2] is its text. Returns {status, ...}.
-- a: document, ttl_ms, limits
local key = K.document(a.document)
if redis.call('EXISTS', key) == 0 then
  local refused = document_refused(#ARGV[2])
  if refused then return refused end
  redis.call('SET', key, ARGV[2], 'PX', a.ttl_ms)
end
keep_document(a.document, a.ttl_ms)
return {'stored'}
