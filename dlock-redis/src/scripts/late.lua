-- Refuses a request that is executed after its deadline, the last ARGV: microseconds since 1970 on the server's clock, 0 for none.
-- Its caller has given up, and may have gone on. The answer is then the status `late` with the server's time.
local deadline = tonumber(ARGV[#ARGV])
if deadline > 0 then
    local time = redis.call('TIME')
    if time[1] * 1000000 + time[2] > deadline then
        return redis.status_reply('late ' .. time[1] .. string.format('%06d', time[2]))
    end
end
