-- Gives back at once what is held alone. The start of permit_release.lua; goes on where the claim is in the queue, or gone.
local function free()
    redis.call('DEL', KEYS[1])
    -- For those of Redisson who wait for the name as another kind of lock.
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
