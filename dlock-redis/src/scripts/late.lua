-- Refuses a request that is executed after its deadline, because its caller has given up and may
-- have released the lock since.
-- ARGV: the last is the deadline in µs since 1970 on the server's clock, or 0 for none.
-- Reply to a late request: the status `late` with the server's time.
local deadline = tonumber(ARGV[#ARGV])
if deadline > 0 and time[1] * 1000000 + time[2] > deadline then
    return redis.status_reply('late ' .. time[1] .. string.format('%06d', time[2]))
end
