-- The beginning of permit_release.lua. Releases the permit of a single claim at once. Continues if
-- the claim is in the queue or was deleted.
local function free()
    redis.call('DEL', KEYS[1])
    -- For waiters of Redisson that wait for the name as another kind of lock.
    redis.call(ARGV[4], ARGV[3], '0')
    redis.call(ARGV[4], ARGV[5], '1')
    redis.call(ARGV[4], ARGV[5], '0')
    local head = redis.pcall('LINDEX', KEYS[4], 0)
    if type(head) == 'string' then redis.call(ARGV[4], ARGV[3] .. ':' .. head, '0') end
end
if redis.pcall('HEXISTS', KEYS[1], ARGV[1]) == 1 then
    free()
    return 1
end
