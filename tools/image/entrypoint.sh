#!/usr/bin/env bash
# Entry point of the image `pipeline`. Spark on Kubernetes starts its pods with `driver …` and with
# `executor`, and says the rest in variables; what else stands here is for `nsq-gateway`.
set -euo pipefail

# Starts one executor, which asks its driver for work until that ends it.
executor() {
    local name options=()
    # Numbered from 0; the JVM takes them in that order.
    while IFS= read -r name; do
        options+=("${!name}")
    done < <(compgen -v SPARK_JAVA_OPT_ | sort --field-separator=_ --key=4 --numeric-sort)
    exec "$JAVA_HOME/bin/java" "${options[@]}" \
        "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
        -cp "${SPARK_CONF_DIR:-$SPARK_HOME/conf}:$SPARK_HOME/jars/*${SPARK_EXTRA_CLASSPATH:+:$SPARK_EXTRA_CLASSPATH}" \
        org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
        --driver-url "$SPARK_DRIVER_URL" \
        --executor-id "$SPARK_EXECUTOR_ID" \
        --cores "$SPARK_EXECUTOR_CORES" \
        --app-id "$SPARK_APPLICATION_ID" \
        --hostname "$SPARK_EXECUTOR_POD_IP" \
        --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
        --podName "$SPARK_EXECUTOR_POD_NAME"
}

# Asks the job to end: a child of the JVM that runs our main file. Before there is one, the JVM itself.
end_job() {
    local child
    for child in $(cat "/proc/$1"/task/*/children 2>/dev/null); do
        if tr '\0' '\n' <"/proc/$child/cmdline" 2>/dev/null | grep --quiet '/pyspark_nsq/'; then
            kill -TERM "$child" || true
            # Without a number it would be the status of what the signal interrupted.
            return 0
        fi
    done
    kill -TERM "$1" 2>/dev/null || true
}

# Runs spark-submit. It is the parent of the job here, and would die of SIGTERM before the job has
# stopped its query and handed back what it holds: so the job gets the signal, and the JVM ends with it.
submit() {
    local jvm status asked=''
    "$SPARK_HOME/bin/spark-submit" "$@" &
    jvm=$!
    trap 'asked=yes; end_job "$jvm"' TERM INT
    while :; do
        status=0
        wait "$jvm" || status=$?
        # A signal ends `wait`, and not the JVM.
        [ -n "$asked" ] || exit "$status"
        asked=''
    done
}

case "${1:-}" in
driver)
    shift
    submit --deploy-mode client --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" "$@"
    ;;
executor)
    executor
    ;;
spark-submit)
    shift
    submit "$@"
    ;;
*)
    exec nsq-gateway "$@"
    ;;
esac
