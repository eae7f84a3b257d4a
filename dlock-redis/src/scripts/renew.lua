-- KEYS: two for each hold: its lock, and for a read hold its timeout, for a write hold the token, for a permit the heartbeats,
-- else the lock again. ARGV: the field of each hold, of a permit `owner/limit`, then the ttl in ms of each.
-- Answer: for each hold 1 if it is renewed, 0 if it is gone.
local answer, holds = {}, #ARGV / 2
-- As long as it is in the queue, not dead, and the lock is that of permits: a place that was granted goes to no other.
local function renew_permit(lock, beats, claim, ttl)
    local time = redis.call('TIME')
    local now = time[1] * 1000 + math.floor(time[2] / 1000)
    local ends = redis.pcall('HGET', lock, 'mode') == 'permit' and redis.call('ZSCORE', beats, claim)
    if not ends or tonumber(ends) <= now then return false end
    redis.call('ZADD', beats, now + ttl, claim)
    for _, key in ipairs({lock, beats, (string.gsub(beats, 'beats', 'queue', 1))}) do
        redis.call('PEXPIRE', key, math.max(redis.call('PTTL', key), ttl))
    end
    return true
end
for i = 1, holds do
    local lock, beside, field, ttl = KEYS[2 * i - 1], KEYS[2 * i], ARGV[i], ARGV[holds + i]
    local is_permit = string.find(field, '/', 1, true)
    local held = not is_permit and redis.pcall('HEXISTS', lock, field) == 1
    if held and string.sub(field, -6) == ':write' then
        -- A downgrade is answered with the writer's token, so the token must not end before the hold.
        local left = redis.call('PTTL', beside)
        if left >= 0 and left < 2 * ttl then redis.call('PEXPIRE', beside, 2 * ttl) end
    elseif held and beside ~= lock then
        held = redis.call('PEXPIRE', beside, ttl) == 1
        ttl = held and math.max(redis.call('PTTL', lock), tonumber(ttl))
    end
    if held then redis.call('PEXPIRE', lock, ttl) end
    held = held or is_permit and renew_permit(lock, beside, field, tonumber(ttl))
    answer[i] = held and 1 or 0
end
return answer
