-- KEYS: two for each hold: its lock, and for a read hold its timeout, for a write hold the token, for a permit the heartbeats,
-- else the lock again. ARGV: the field of each hold, of a permit `owner/limit`, then the ttl in ms of each.
-- Answer: for each hold 1 if it is renewed, 0 if it is gone.
local answer, holds = {}, #ARGV / 2
-- Extends the time of a key, and never shortens it: a renewal may arrive late. Always writes: replicas confirm only what is written.
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
    local lock, beside, field, ttl = KEYS[2 * i - 1], KEYS[2 * i], ARGV[i], tonumber(ARGV[holds + i])
    local is_permit = string.find(field, '/', 1, true)
    local held = redis.pcall('HEXISTS', lock, field) == 1
    if is_permit and not held then
        held = renew_permit(lock, beside, field, ttl)
    elseif held and not is_permit and string.sub(field, -6) ~= ':write' and beside ~= lock then
        held = renew_read(lock, beside, ttl)
    elseif held then
        keep(lock, ttl)
        -- A downgrade is answered with the writer's token, so the token must not end before the hold.
        local left = not is_permit and beside ~= lock and redis.call('PTTL', beside) or -1
        if left >= 0 and left < 2 * ttl then redis.call('PEXPIRE', beside, 2 * ttl) end
    end
    answer[i] = held and 1 or 0
end
return answer
