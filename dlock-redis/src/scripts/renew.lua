-- Renews holds.
-- KEYS: two for each hold. The first is its lock. The second is the timeout of a read hold, the
-- token of a write hold, the heartbeats of permits, and otherwise the lock again.
-- ARGV: the field of each hold, which is `owner/limit` for a permit, then the ttl of each hold in
-- ms.
-- Reply: for each hold 1 if it was renewed, 0 if it was deleted.
local reply, holds = {}, #ARGV / 2
-- Extends the ttl of a key. Never shortens it, because a renewal may be executed late. Always
-- writes, because replicas confirm only writes.
local function keep(key, ttl)
    redis.call('PEXPIRE', key, math.max(redis.call('PTTL', key), ttl))
end
-- The lock lasts as long as its longest reader.
local function renew_read(lock, timeout, ttl)
    if redis.call('EXISTS', timeout) == 0 then return false end
    keep(timeout, ttl)
    keep(lock, ttl)
    return true
end
for i = 1, holds do
    local lock, second, field, ttl = KEYS[2 * i - 1], KEYS[2 * i], ARGV[i], tonumber(ARGV[holds + i])
    local is_permit = string.find(field, '/', 1, true)
    local held = redis.pcall('HEXISTS', lock, field) == 1
    if is_permit and not held then
        held = renew_permit(lock, second, field, ttl)
    elseif held and not is_permit and string.sub(field, -6) ~= ':write' and second ~= lock then
        held = renew_read(lock, second, ttl)
    elseif held then
        keep(lock, ttl)
        -- A downgrade returns the writer's token, so the token must not end before the hold.
        local left = not is_permit and second ~= lock and redis.call('PTTL', second) or -1
        if left >= 0 and left < 2 * ttl then redis.call('PEXPIRE', second, 2 * ttl) end
    end
    reply[i] = held and 1 or 0
end
return reply
