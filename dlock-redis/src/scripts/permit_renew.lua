-- renew_permit(lock, beats, claim, ttl): whether the permit is renewed, which lasts as long as it is in the queue, not dead, and the
-- lock is that of permits: a place that was granted goes to no other.
local function renew_permit(lock, beats, claim, ttl)
    local time = redis.call('TIME')
    local now = time[1] * 1000 + math.floor(time[2] / 1000)
    local ends = redis.pcall('HGET', lock, 'mode') == 'permit' and redis.call('ZSCORE', beats, claim)
    if not ends or tonumber(ends) < now then return false end
    -- Never shortens: a renewal may arrive late.
    redis.call('ZADD', beats, string.format('%d', math.max(now + ttl, ends)), claim)
    -- The keys last as long as the longest claim.
    local last = redis.call('ZRANGE', beats, -1, -1, 'WITHSCORES')[2]
    for _, key in ipairs({lock, beats, (string.gsub(beats, 'beats', 'queue', 1))}) do
        redis.call('PEXPIRE', key, last - now)
    end
    return true
end
