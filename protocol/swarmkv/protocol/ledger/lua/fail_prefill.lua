-- A prefill cannot succeed: every branch that waits for it fails with its reason. Returns 1, or 0 if not held.
-- a: prefix, generation, worker, error{code, message, hint}
if not prefill_is_held(a.prefix, a.generation, a.worker) then return 0 end
release(prefill_job(a.prefix, a.generation))
fail_prefix(a.prefix, a.error, fail_branch)
flush()
return 1
