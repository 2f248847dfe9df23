<?php
/*
 * Work on the messages of a channel from a PHP script, for example started by cron: batch after batch, until there is
 * none for 20 s. PHP 8.1, no extension.
 *
 *   php pull_worker.php http://127.0.0.1:8080 orders billing
 *
 * A message is finished once `work` has returned. If it throws, the message is delivered again after 5 s. What is not
 * answered within a minute, for example because this script was killed, is delivered again, too.
 */
declare(strict_types=1);

const BATCH = 50;
const WAIT_MS = 20_000;
const LEASE_MS = 60_000;

/** Replace this by what a message is for. */
function work(string $body): void
{
    $order = json_decode($body, associative: true, flags: JSON_THROW_ON_ERROR);
    echo "order {$order['order']}\n";
}

/** Return the JSON of a response; an error of the gateway is thrown, with what it says. */
function post(string $url, ?array $content = null): array
{
    $headers = ['Content-Type: application/json', 'Connection: close'];
    if ($secret = getenv('GATEWAY_SECRET')) {
        $headers[] = "Authorization: Bearer $secret";
    }
    $context = stream_context_create(['http' => [
        'method' => 'POST',
        'header' => $headers,
        'content' => $content === null ? '' : json_encode($content, JSON_THROW_ON_ERROR),
        'timeout' => WAIT_MS / 1_000 + 10,
        'ignore_errors' => true,  // else the body of an error response is lost
    ]]);
    $answer = @file_get_contents($url, false, $context);
    if ($answer === false) {
        throw new RuntimeException("no answer from $url");
    }
    $decoded = json_decode($answer, associative: true, flags: JSON_THROW_ON_ERROR);
    if (!str_contains($http_response_header[0], ' 200')) {
        throw new RuntimeException($decoded['detail'] ?? $http_response_header[0]);
    }
    return $decoded;
}

if ($argc !== 4) {
    exit("usage: php pull_worker.php GATEWAY_URL TOPIC CHANNEL\n");
}
[, $gateway, $topic, $channel] = $argv;
$query = http_build_query([
    'topic' => $topic, 'channel' => $channel, 'max' => BATCH, 'wait_ms' => WAIT_MS, 'lease_ms' => LEASE_MS,
]);
while ($messages = post("$gateway/pull?$query")['messages']) {
    $done = $failed = [];
    foreach ($messages as $message) {
        try {
            work($message['body'] ?? base64_decode($message['body_base64']));
            $done[] = $message['lease'];
        } catch (Throwable $error) {
            fwrite(STDERR, "message {$message['id']}, attempt {$message['attempts']}: {$error->getMessage()}\n");
            $failed[] = ['lease' => $message['lease'], 'timeout_ms' => 5_000];
        }
    }
    foreach (post("$gateway/ack", ['fin' => $done, 'req' => $failed])['refused'] as $refused) {
        fwrite(STDERR, "{$refused['code']}: {$refused['message']}\n");
    }
}
