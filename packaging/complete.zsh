
if [[ ${funcstack[1]} == _dlock ]]; then
    _clap_dynamic_completer_dlock "$@"
fi
