-- KEYS: lock, fair queue, deadlines, fair heartbeats, readers and writers that wait, their heartbeats. ARGV: tag.
-- Answer: {type, pttl, fields, {owner, ms, token of each read hold}, {kind, owner, ms of each waiter}}.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local kind = redis.call('TYPE', KEYS[1]).ok
local fields = kind == 'hash' and redis.call('HGETALL', KEYS[1]) or kind == 'string' and {redis.call('GET', KEYS[1]), '1'} or {}
local reads, waits = {}, {}
for i = 1, #fields, 2 do
    local key = ARGV[1] .. ':' .. fields[i] .. ':rwlock_timeout:1'
    for _, value in ipairs({fields[i], redis.call('PTTL', key), redis.pcall('GET', key) or ''}) do
        reads[#reads + 1] = type(value) == 'table' and '' or value
    end
end
local function wait(as, owner, deadline)
    local left = deadline and math.floor(tonumber(deadline) - now) or -1
    -- Dead, and only not yet buried.
    if deadline and left <= 0 then return end
    waits[#waits + 1], waits[#waits + 2], waits[#waits + 3] = as, owner, left
end
for _, owner in ipairs(redis.call('LRANGE', KEYS[2], 0, -1)) do
    wait('fair', owner, redis.call('ZSCORE', KEYS[4], owner) or redis.call('ZSCORE', KEYS[3], owner))
end
local line = {}
for i, as in ipairs({'read', 'write'}) do
    local found = redis.call('ZRANGE', KEYS[4 + i], 0, -1, 'WITHSCORES')
    for j = 1, #found, 2 do line[#line + 1] = {tonumber(found[j + 1]), as, found[j]} end
end
table.sort(line, function(a, b) return a[1] < b[1] end)
for _, one in ipairs(line) do
    wait(one[2], one[3], redis.call('ZSCORE', KEYS[7], one[3]))
end
return {kind, redis.call('PTTL', KEYS[1]), fields, reads, waits}
