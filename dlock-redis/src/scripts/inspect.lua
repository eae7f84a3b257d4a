-- Reads the state of a lock.
-- KEYS: those of permit.lua, fair queue, deadlines, fair heartbeats, waiting readers, waiting
-- writers, heartbeats of both.
-- ARGV: tag, type of locks.
-- Reply: {ttl of the lock in ms, {each field, with its ttl in ms and its token as a read hold or a
-- permit; and `mode` with `permit` for permits}, {kind, owner and ttl in ms of each waiter}}.
local fields = fields_of(KEYS[1], redis.call('TYPE', KEYS[1]).ok, ARGV[2]) or {}
local holds, waits = {}, {}
local mode = ARGV[2] == 'hash' and fields[1] and redis.call('HGET', KEYS[1], 'mode')
for i = 1, #fields, 2 do
    local timeout = ARGV[1] .. ':' .. fields[i] .. ':rwlock_timeout:1'
    local token, left = redis.pcall('GET', timeout), redis.call('PTTL', timeout)
    -- A reader of dlock without a timeout has expired, though its field is not yet removed.
    if not (mode == 'read' and left == -2 and string.sub(fields[i], -2) == ':0') then
        holds[#holds + 1], holds[#holds + 2] = fields[i], left
        holds[#holds + 1] = type(token) == 'string' and token or ''
    end
end
local function wait(as, owner, deadline)
    local left = deadline and math.floor(tonumber(deadline) - now) or -1
    -- The waiter has expired, though remove_expired() has not yet removed it.
    if deadline and left <= 0 then return end
    waits[#waits + 1], waits[#waits + 2], waits[#waits + 3] = as, owner, left
end
for _, owner in ipairs(redis.call('LRANGE', KEYS[4], 0, -1)) do
    wait('fair', owner, redis.call('ZSCORE', KEYS[6], owner) or redis.call('ZSCORE', KEYS[5], owner))
end
local queue_entries = {}
for i, as in ipairs({'read', 'write'}) do
    local found = redis.call('ZRANGE', KEYS[6 + i], 0, -1, 'WITHSCORES')
    for j = 1, #found, 2 do queue_entries[#queue_entries + 1] = {tonumber(found[j + 1]), as, found[j]} end
end
table.sort(queue_entries, function(a, b) return a[1] < b[1] end)
for _, entry in ipairs(queue_entries) do
    wait(entry[2], entry[3], redis.call('ZSCORE', KEYS[9], entry[3]))
end
if mode == 'permit' then holds = permits(fields, wait) end
return {redis.call('PTTL', KEYS[1]), holds, waits}
