-- Breaks a lock.
-- KEYS: lock, fair queue, saved reply of this call.
-- ARGV: channel, read/write channel, publish command, type of locks, ttl of the saved reply in ms.
-- Reply: 1 if the lock was held, else 0. Or a status: `permit` if the caller has to run
-- permit_break.lua, or the type of the key if it is not a lock.
--
-- The reply is saved, because a client whose reply was lost repeats the call, which must not break
-- the lock of the next holder. It is saved in a list, because neither dialect uses a list for a
-- lock.
local saved = redis.call('LINDEX', KEYS[3], 0)
if saved then return tonumber(saved) end
local kind = redis.call('TYPE', KEYS[1]).ok
local function remember(reply)
    redis.call('RPUSH', KEYS[3], reply)
    redis.call('PEXPIRE', KEYS[3], ARGV[5])
    return reply
end
if kind == 'none' then return remember(0) end
if not fields_of(KEYS[1], kind, ARGV[4]) then return redis.status_reply(kind) end
local mode = kind == 'hash' and redis.call('HGET', KEYS[1], 'mode')
if mode == 'permit' then return redis.status_reply(mode) end
redis.call('DEL', KEYS[1])
remember(1)
if mode then
    redis.call(ARGV[3], ARGV[2], '1')
    -- Both messages are needed, see wake_all() in rw.lua.
    redis.call(ARGV[3], ARGV[2], '0')
    return 1
end
redis.call(ARGV[3], ARGV[1], '0')
local head = redis.pcall('LINDEX', KEYS[2], 0)
if type(head) == 'string' then redis.call(ARGV[3], ARGV[1] .. ':' .. head, '0') end
return 1
