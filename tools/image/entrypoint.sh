#!/usr/bin/env bash
# Entry point of the image `pipeline`. Spark on Kubernetes starts its pods with the arguments
# `driver …` and `executor`, and environment variables. Other arguments are for `nsq-gateway`.
set -euo pipefail

# Starts an executor, which gets work from its driver until the driver stops it.
executor() {
    local name options=()
    # The variables are numbered from 0, in the order of the JVM's options.
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

# Sends SIGTERM to the job, the JVM's child that runs the main file, or to the JVM if there is none yet.
end_job() {
    local child
    for child in $(cat "/proc/$1"/task/*/children 2>/dev/null); do
        if tr '\0' '\n' <"/proc/$child/cmdline" 2>/dev/null | grep --quiet '/pyspark_nsq/'; then
            kill -TERM "$child" || true
            # Without a number, the status would be that of the interrupted command.
            return 0
        fi
    done
    kill -TERM "$1" 2>/dev/null || true
}

# Runs spark-submit, the parent of the job. It would exit on SIGTERM before the job has stopped its
# query and requeued its messages. So only the job gets the signal, and the JVM ends with it.
submit() {
    local jvm status asked=''
    "$SPARK_HOME/bin/spark-submit" "$@" &
    jvm=$!
    trap 'asked=yes; end_job "$jvm"' TERM INT
    while :; do
        status=0
        wait "$jvm" || status=$?
        # A signal interrupts `wait`, but does not stop the JVM.
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
