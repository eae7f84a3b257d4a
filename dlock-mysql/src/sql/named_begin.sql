-- Says after how many seconds of silence the server ends this session. In: seconds. Out: a row with the number of the session.
SET SESSION wait_timeout = :seconds;
SELECT CONNECTION_ID()
