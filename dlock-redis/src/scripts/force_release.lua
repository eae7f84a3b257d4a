-- KEYS: lock, fair queue, latch of this call. ARGV: channel, read/write channel, publish command, type of locks, ms that the latch stays.
-- Answer: 1 if somebody held it, 0 if nobody did; or a status: `permit` for permit_break.lua, or the type of the key if it is no lock.
-- The latch keeps the answer. A client whose answer was lost sends the call again, which must not break the next holder's lock.
-- The latch is a list, because neither dialect takes a list for a lock.
local told = redis.call('LINDEX', KEYS[3], 0)
if told then return tonumber(told) end
local kind = redis.call('TYPE', KEYS[1]).ok
local function remember(answer)
    redis.call('RPUSH', KEYS[3], answer)
    redis.call('PEXPIRE', KEYS[3], ARGV[5])
    return answer
end
if kind == 'none' then return remember(0) end
if not fields_of(KEYS[1], kind, ARGV[4]) then return redis.status_reply(kind) end
local mode = kind == 'hash' and redis.call('HGET', KEYS[1], 'mode')
if mode == 'permit' then return redis.status_reply(mode) end
redis.call('DEL', KEYS[1])
remember(1)
if mode then
    redis.call(ARGV[3], ARGV[2], '1')
    -- See wake_all() in rw.lua.
    redis.call(ARGV[3], ARGV[2], '0')
    return 1
end
redis.call(ARGV[3], ARGV[1], '0')
local head = redis.pcall('LINDEX', KEYS[2], 0)
if type(head) == 'string' then redis.call(ARGV[3], ARGV[1] .. ':' .. head, '0') end
return 1
