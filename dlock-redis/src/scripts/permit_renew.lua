-- renew_permit(lock, heartbeats, claim, ttl) renews a permit, and returns whether it did. A permit
-- is held as long as its claim has not expired and the lock is one of permits, because a granted
-- position in the queue never passes to another claim.
local function renew_permit(lock, heartbeats, claim, ttl)
    local time = redis.call('TIME')
    local now = time[1] * 1000 + math.floor(time[2] / 1000)
    local ends = redis.pcall('HGET', lock, 'mode') == 'permit' and redis.call('ZSCORE', heartbeats, claim)
    if not ends or tonumber(ends) < now then return false end
    -- Never shortens the hold, because a renewal may be executed late.
    redis.call('ZADD', heartbeats, string.format('%d', math.max(now + ttl, ends)), claim)
    -- The keys last as long as the longest claim.
    local last = redis.call('ZRANGE', heartbeats, -1, -1, 'WITHSCORES')[2]
    for _, key in ipairs({lock, heartbeats, (string.gsub(heartbeats, 'beats', 'queue', 1))}) do
        redis.call('PEXPIRE', key, last - now)
    end
    return true
end
